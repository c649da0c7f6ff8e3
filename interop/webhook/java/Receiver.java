// A receiver of webhooks on com.sun.net.httpserver. What it prints, a line each, is what ../drive.py reads.

import static java.nio.charset.StandardCharsets.UTF_8;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.PrintStream;
import java.net.InetSocketAddress;
import java.security.GeneralSecurityException;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayDeque;
import java.util.HexFormat;
import java.util.Queue;

public class Receiver {
    private static final PrintStream OUT = new PrintStream(System.out, true, UTF_8);
    private static final Queue<Integer> PLAN = new ArrayDeque<>(); // statuses that the next good calls are answered with

    public static void main(String[] arguments) throws IOException {
        // One thread serves all calls, so that they are told in their order.
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        server.createContext("/plan", Receiver::plan);
        server.createContext("/", Receiver::receive);
        server.start();
        OUT.println("{\"client\":\"Java " + Runtime.version().feature() + ", javax.crypto\",\"port\":" + server.getAddress().getPort() + "}");
    }

    private static void plan(HttpExchange call) throws IOException {
        PLAN.clear();
        for (String status : new String(call.getRequestBody().readAllBytes(), UTF_8).split("[^0-9]+")) {
            if (!status.isEmpty()) {
                PLAN.add(Integer.valueOf(status));
            }
        }
        answer(call, 204);
    }

    private static void receive(HttpExchange call) throws IOException {
        byte[] body = call.getRequestBody().readAllBytes();
        String timestamp = call.getRequestHeaders().getFirst("Tidings-Timestamp");
        String signature = call.getRequestHeaders().getFirst("Tidings-Signature");
        if (!isGood(timestamp, signature, body)) {
            OUT.println("{\"status\":401,\"timestamp\":" + text(timestamp) + "}");
            answer(call, 401);
            return;
        }
        int status = PLAN.isEmpty() ? 200 : PLAN.remove();
        // The body is one object of JSON: what is told of the call goes before its fields.
        OUT.println("{\"status\":" + status + ",\"timestamp\":" + text(timestamp) + ",\"signature\":" + text(signature)
                + ",\"type\":" + text(call.getRequestHeaders().getFirst("Content-Type"))
                + ",\"body\":\"" + HexFormat.of().formatHex(body) + "\"," + new String(body, UTF_8).strip().substring(1));
        answer(call, status);
    }

    private static boolean isGood(String timestamp, String signature, byte[] body) {
        try {
            return VerifyWebhook.verify(System.getenv("WEBHOOK_SECRET"), timestamp, signature, body, Instant.now(), Duration.ofMinutes(5));
        } catch (GeneralSecurityException fault) {
            throw new IllegalStateException(fault);
        }
    }

    private static String text(String value) {
        return value == null ? "null" : "\"" + value.replace("\\", "\\\\").replace("\"", "\\\"") + "\"";
    }

    private static void answer(HttpExchange call, int status) throws IOException {
        if (status >= 300 && status < 400) {
            call.getResponseHeaders().set("Location", "/elsewhere");
        }
        call.sendResponseHeaders(status, -1);
        call.close();
    }
}
