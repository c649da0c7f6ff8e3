import java.io.ByteArrayInputStream;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Java's own HttpClient, which offers h2c with its first request unless it is told not to. */
public final class Suite {
    private static final String URL = System.getenv("TIDINGS_URL");
    private static final String KEY = System.getenv("TIDINGS_API_KEY");
    private static int count = 0;
    private static int failures = 0;

    interface Check {
        void run() throws Exception;
    }

    static void check(String name, Check check) {
        count++;
        try {
            check.run();
            System.out.println("ok " + count + " - " + name);
        } catch (Exception | AssertionError error) {
            failures++;
            System.out.println("not ok " + count + " - " + name);
            for (Throwable why = error; why != null; why = why.getCause()) {
                System.out.println("# " + why.toString().replace("\n", "\n# "));
                for (StackTraceElement element : why.getStackTrace()) {
                    if (element.getClassName().startsWith("Suite")) System.out.println("#   at " + element);
                }
            }
        }
        System.out.flush();
    }

    static void expect(boolean holds, String why) {
        if (!holds) throw new AssertionError(why);
    }

    static HttpRequest.Builder request(String path) {
        return HttpRequest.newBuilder(URI.create(URL + path)).timeout(Duration.ofSeconds(120)).header("Authorization", "Bearer " + KEY);
    }

    static HttpRequest send(String id, BodyPublisher body) {
        return request("/v1/messages").header("Content-Type", "application/json").POST(body).build();
    }

    static String message(String id, String body) {
        return "{\"from\":\"java-ada\",\"to\":\"java-ben\",\"client_msg_id\":\"" + id + "\",\"body\":" + body + "}";
    }

    static HttpRequest send(String id) {
        return send(id, BodyPublishers.ofString(message(id, "{\"id\":\"" + id + "\"}")));
    }

    static HttpResponse<String> expect(HttpResponse<String> answer, int status, String code) {
        expect(answer.statusCode() == status, answer.statusCode() + ": " + answer.body());
        if (code != null) {
            expect(answer.headers().firstValue("content-type").orElse("").equals("application/problem+json"), answer.headers().toString());
            expect(answer.body().contains("\"code\":\"" + code + "\"") && answer.body().contains("\"status\":" + status), answer.body());
        }
        return answer;
    }

    static long number(String json, String name) {
        Matcher matcher = Pattern.compile("\"" + name + "\":(\\d+)").matcher(json);
        expect(matcher.find(), "no " + name + " in " + json);
        return Long.parseLong(matcher.group(1));
    }

    static List<Long> numbers(String json, String name) {
        List<Long> found = new ArrayList<>();
        Matcher matcher = Pattern.compile("\"" + name + "\":(\\d+)").matcher(json);
        while (matcher.find()) found.add(Long.parseLong(matcher.group(1)));
        return found;
    }

    /** `kind`: what the client speaks, of itself (it offers h2c) or as told (h1). */
    static void run(String kind, HttpClient client) {
        BodyPublisher users = BodyPublishers.ofString("{\"users\":[{\"id\":\"java-ada\"},{\"id\":\"java-ben\"},{\"id\":\"java-jörg+ß%\"}]}");
        check(kind + ": users are made, by the first request of a connection", () ->
            expect(client.send(request("/v1/users").header("Content-Type", "application/json").PUT(users).build(), BodyHandlers.ofString()), 200, null));
        check(kind + ": 50 sends, one after another", () -> {
            long last = 0;
            for (int n = 0; n < 50; n++) {
                HttpResponse<String> answer = expect(client.send(send(kind + "-s" + n), BodyHandlers.ofString()), 200, null);
                expect(answer.version() == HttpClient.Version.HTTP_1_1, "the version is " + answer.version());
                long seq = number(answer.body(), "seq");
                expect(seq > last, seq + " after " + last);
                last = seq;
            }
        });
        check(kind + ": 75 sends at once, and their retries at once", () -> {
            List<CompletableFuture<HttpResponse<String>>> sent = new ArrayList<>();
            // Each on a connection of its own, which the client keeps for twenty minutes.
            for (int n = 0; n < 150; n++) sent.add(client.sendAsync(send(kind + "-p" + n % 75), BodyHandlers.ofString()));
            List<Long> seqs = new ArrayList<>();
            for (CompletableFuture<HttpResponse<String>> one : sent) seqs.add(number(expect(one.join(), 200, null).body(), "seq"));
            expect(new HashSet<>(seqs.subList(0, 75)).size() == 75, "a number was given twice");
            expect(seqs.subList(0, 75).equals(seqs.subList(75, 150)), "a retry was answered with another result");
        });
        check(kind + ": a chunked body", () -> {
            byte[] body = message(kind + "-chunked", "\"" + "ж".repeat(20_000) + "\"").getBytes(StandardCharsets.UTF_8);
            HttpResponse<String> answer = expect(client.send(send("", BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(body))), BodyHandlers.ofString()), 200, null);
            String page = client.send(request("/v1/conversations/java-ada~java-ben/messages?limit=1&from_seq=" + number(answer.body(), "seq")).build(), BodyHandlers.ofString()).body();
            expect(page.contains("ж".repeat(20_000)), page.substring(0, 200));
        });
        check(kind + ": Expect: 100-continue", () ->
            expect(client.send(request("/v1/messages").header("Content-Type", "application/json").expectContinue(true)
                .POST(BodyPublishers.ofString(message(kind + "-expect", "1"))).build(), BodyHandlers.ofString()), 200, null));
        check(kind + ": history by pages", () -> {
            long next = 1;
            while (true) {
                String page = expect(client.send(request("/v1/conversations/java-ada~java-ben/messages?limit=40&from_seq=" + next).build(), BodyHandlers.ofString()), 200, null).body();
                List<Long> seqs = numbers(page.split("\"first_seq\"")[0], "seq");
                if (seqs.isEmpty()) break;
                for (long seq : seqs) expect(seq == next++, "seq " + seq + " where " + (next - 1) + " was due");
            }
            expect(next > 120, "only " + next + " entries");
        });
        check(kind + ": an answer taken as a stream", () -> {
            HttpResponse<InputStream> answer = client.send(request("/v1/conversations/java-ada~java-ben/messages?limit=200").build(), BodyHandlers.ofInputStream());
            byte[] all = answer.body().readAllBytes();
            expect(all.length > 10_000 && all[all.length - 1] == '}', all.length + " bytes");
        });
        check(kind + ": refusals are problems, and the client goes on", () -> {
            expect(client.send(request("/v1/users/java-nobody").build(), BodyHandlers.ofString()), 404, "not_found");
            HttpRequest wrong = HttpRequest.newBuilder(URI.create(URL + "/v1/users/java-ada")).header("Authorization", "Bearer nobody").build();
            // Without an authenticator the client hands a 401 over as it is.
            expect(client.send(wrong, BodyHandlers.ofString()), 401, "unauthorized");
            expect(client.send(request("/v1/messages").DELETE().build(), BodyHandlers.ofString()), 405, "method_not_allowed");
            expect(client.send(send("", BodyPublishers.ofString("{")), BodyHandlers.ofString()), 400, "malformed");
            expect(client.send(send("", BodyPublishers.ofString(message("typed", "1").replace("\"java-ben\"", "7"))), BodyHandlers.ofString()), 422, "invalid_field");
            expect(client.send(request("/v1/users/java-ada").build(), BodyHandlers.ofString()), 200, null);
        });
        check(kind + ": HEAD, and an id beyond ASCII", () -> {
            HttpResponse<String> head = client.send(request("/v1/users/java-ada").method("HEAD", BodyPublishers.noBody()).build(), BodyHandlers.ofString());
            expect(head.statusCode() == 200 && head.body().isEmpty(), head.toString());
            expect(client.send(request("/v1/users/java-j%C3%B6rg+%C3%9F%25").build(), BodyHandlers.ofString()), 200, null);
        });
        check(kind + ": 8 MB too much is 413", () ->
            expect(client.send(send("", BodyPublishers.ofString(message("large", "\"" + "z".repeat(8_000_000) + "\""))), BodyHandlers.ofString()), 413, "limit_exceeded"));
    }

    /** One write with several requests; the client cannot do that. */
    static void pipelined() throws Exception {
        URI uri = URI.create(URL);
        try (Socket socket = new Socket()) {
            socket.connect(new InetSocketAddress(uri.getHost(), uri.getPort()), 120_000);
            socket.setSoTimeout(120_000);
            String head = "Host: " + uri.getAuthority() + "\r\nAuthorization: Bearer " + KEY + "\r\n";
            String get = "GET /v1/users/java-ada HTTP/1.1\r\n" + head;
            StringBuilder all = new StringBuilder();
            for (int n = 0; n < 10; n++) {
                String body = message("pipelined-" + n, "1");
                all.append(get).append("\r\n").append("POST /v1/messages HTTP/1.1\r\n").append(head)
                    .append("Content-Type: application/json\r\nContent-Length: ").append(body.length()).append("\r\n\r\n").append(body);
            }
            all.append(get).append("Connection: close\r\n\r\n");
            OutputStream out = socket.getOutputStream();
            out.write(all.toString().getBytes(StandardCharsets.UTF_8));
            out.flush();
            String text = new String(socket.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
            Matcher answers = Pattern.compile("HTTP/1\\.1 (\\d+)").matcher(text);
            int ok = 0;
            while (answers.find()) if (answers.group(1).equals("200")) ok++;
            expect(ok == 21, ok + " answers of 21: " + text);
        }
    }

    public static void main(String[] arguments) {
        System.out.println("TAP version 13\n# client: java.net.http of Java " + System.getProperty("java.version"));
        run("h2c", HttpClient.newBuilder().connectTimeout(Duration.ofSeconds(120)).build());
        run("h1", HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).connectTimeout(Duration.ofSeconds(120)).build());
        check("200 connections, a request on each", () -> {
            for (int n = 0; n < 200; n++) {
                java.net.HttpURLConnection connection = (java.net.HttpURLConnection) new java.net.URL(URL + "/v1/users/java-ada").openConnection();
                connection.setRequestProperty("Authorization", "Bearer " + KEY);
                connection.setRequestProperty("Connection", "close");
                connection.setReadTimeout(120_000);
                expect(connection.getResponseCode() == 200, "status " + connection.getResponseCode());
                connection.getInputStream().readAllBytes();
            }
        });
        check("21 requests in one write", Suite::pipelined);
        System.out.println("1.." + count);
        System.exit(failures == 0 ? 0 : 1);
    }
}
