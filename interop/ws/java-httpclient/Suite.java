// The WebSocket listener with java.net.http, which brings no JSON: `Json` reads what is needed.

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.WebSocket;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

public class Suite {
    static final int PATIENCE_S = 120;
    static final int BODY_BYTES_MAX = 64 * 1024;
    static final int WINDOW = 64;
    static final Random RANDOM = new Random();
    static final HttpClient HTTP = HttpClient.newHttpClient();

    interface Check {
        void run() throws Exception;
    }

    static void check(boolean holds, Object why) {
        if (!holds) {
            throw new IllegalStateException(String.valueOf(why));
        }
    }

    static String letters(int length) {
        StringBuilder text = new StringBuilder(length);
        while (text.length() < length) {
            text.append((char) ('a' + RANDOM.nextInt(26)));
        }
        return text.toString();
    }

    /** What the server said at the end of a connection. */
    record End(int code, String reason) {}

    /** A bound session: the entries that came, the newest cursor. */
    static class Session implements WebSocket.Listener {
        final LinkedBlockingQueue<Object> came = new LinkedBlockingQueue<>();
        final LinkedBlockingQueue<ByteBuffer> pongs = new LinkedBlockingQueue<>();
        final CompletableFuture<End> ended = new CompletableFuture<>();
        final List<Map<String, Object>> entries = new ArrayList<>();
        final StringBuilder parts = new StringBuilder();
        WebSocket socket;
        Map<String, Object> bound;
        String cursor;
        long refs;

        static Session connect() throws Exception {
            Session session = new Session();
            session.socket = HTTP.newWebSocketBuilder()
                .buildAsync(URI.create(System.getenv("TIDINGS_WS")), session)
                .get(PATIENCE_S, TimeUnit.SECONDS);
            return session;
        }

        static Session bind(String token, String device, String cursor) throws Exception {
            Session session = connect();
            String more = cursor == null ? "" : ",\"cursor\":" + Json.quote(cursor);
            session.tell("{\"t\":\"bind\",\"token\":\"" + token + "\",\"device_id\":\"" + device + "\"" + more + "}");
            session.bound = session.next();
            check("bound".equals(session.bound.get("t")), session.bound);
            session.cursor = (String) session.bound.get("cursor");
            return session;
        }

        public CompletionStage<?> onText(WebSocket socket, CharSequence data, boolean last) {
            parts.append(data);
            if (last) {
                came.add(parts.toString());
                parts.setLength(0);
            }
            socket.request(1);
            return null;
        }

        public CompletionStage<?> onPong(WebSocket socket, ByteBuffer message) {
            ByteBuffer kept = ByteBuffer.allocate(message.remaining());
            kept.put(message).flip();
            pongs.add(kept);
            socket.request(1);
            return null;
        }

        public CompletionStage<?> onClose(WebSocket socket, int code, String reason) {
            ended.complete(new End(code, reason));
            came.add(new End(code, reason));
            return null;
        }

        public void onError(WebSocket socket, Throwable error) {
            came.add(error);
            ended.completeExceptionally(error);
        }

        void tell(String text) throws Exception {
            socket.sendText(text, true).get(PATIENCE_S, TimeUnit.SECONDS);
        }

        @SuppressWarnings("unchecked")
        Map<String, Object> next() throws Exception {
            Object thing = came.poll(PATIENCE_S, TimeUnit.SECONDS);
            check(thing instanceof String, "instead of a frame came " + thing);
            Map<String, Object> frame = (Map<String, Object>) Json.read((String) thing);
            if ("messages".equals(frame.get("t"))) {
                cursor = (String) frame.get("cursor");
                for (Object entry : (List<Object>) frame.get("entries")) {
                    entries.add((Map<String, Object>) entry);
                }
            }
            return frame;
        }

        /** The frame, or the result of a send, that has the request's ref. `rest`: the fields after it. */
        @SuppressWarnings("unchecked")
        Map<String, Object> ask(String t, String rest) throws Exception {
            long ref = ++refs;
            tell("{\"t\":\"" + t + "\",\"ref\":" + ref + rest + "}");
            while (true) {
                Map<String, Object> frame = next();
                if (Double.valueOf(ref).equals(frame.get("ref"))) {
                    return frame;
                }
                if ("sent".equals(frame.get("t"))) {
                    for (Object result : (List<Object>) frame.get("results")) {
                        if (Double.valueOf(ref).equals(((Map<String, Object>) result).get("ref"))) {
                            return (Map<String, Object>) result;
                        }
                    }
                }
            }
        }

        Map<String, Object> send(String to, String body) throws Exception {
            String id = letters(16);
            while (true) {
                Map<String, Object> answer =
                    ask("send", ",\"to\":\"" + to + "\",\"client_msg_id\":\"" + id + "\",\"body\":" + body);
                if (!"error".equals(answer.get("t")) || !Boolean.TRUE.equals(answer.get("retry"))) {
                    return answer;
                }
                waitAsTold(answer);
            }
        }

        List<Map<String, Object>> have(int count) throws Exception {
            while (entries.size() < count) {
                next();
            }
            check(entries.size() == count, entries.size() + " entries came, " + count + " were sent");
            return entries;
        }

        /** Sends frames by their ref, a window at a time; those that are refused for the moment again. */
        @SuppressWarnings("unchecked")
        void sendAll(Map<Double, String> frames) throws Exception {
            Map<Double, String> waiting = new LinkedHashMap<>(frames);
            while (!waiting.isEmpty()) {
                Set<Double> underWay = new HashSet<>();
                for (Map.Entry<Double, String> frame : waiting.entrySet()) {
                    if (underWay.size() == WINDOW) {
                        break;
                    }
                    underWay.add(frame.getKey());
                    tell(frame.getValue());
                }
                Map<String, Object> refusal = null;
                while (!underWay.isEmpty()) {
                    Map<String, Object> frame = next();
                    if ("sent".equals(frame.get("t"))) {
                        for (Object result : (List<Object>) frame.get("results")) {
                            Object ref = ((Map<String, Object>) result).get("ref");
                            underWay.remove(ref);
                            waiting.remove(ref);
                        }
                    } else if ("error".equals(frame.get("t"))) {
                        check(Boolean.TRUE.equals(frame.get("retry")), frame);
                        underWay.remove(frame.get("ref"));
                        refusal = frame;
                    }
                }
                if (refusal != null) {
                    waitAsTold(refusal);
                }
            }
        }
    }

    static void waitAsTold(Map<String, Object> refusal) throws Exception {
        Object ms = refusal.get("retry_after_ms");
        Thread.sleep(ms instanceof Double wait ? wait.longValue() : 100);
    }

    static void checkLengths(Session ada, Session ben, String to) throws Exception {
        Map<Double, String> frames = new LinkedHashMap<>();
        Map<String, String> bodies = new HashMap<>();
        List<Integer> lengths = new ArrayList<>();
        for (int length = 0; length <= 300; length++) {
            lengths.add(length);
        }
        for (int length = 65_525; length < 65_545; length++) {
            lengths.add(length);
        }
        for (int length : lengths) {
            String head = "{\"t\":\"send\",\"ref\":" + (1_000_000 + length) + ",\"to\":\"" + to
                + "\",\"client_msg_id\":\"l" + length + "\",\"body\":\"";
            String body = letters(length <= 300 ? length : length - head.length() - 2);
            bodies.put("l" + length, body);
            String frame = head + body + "\"}";
            check(length <= 300 || frame.length() == length, "the frame has its length");
            frames.put(1_000_000.0 + length, frame);
        }
        int before = ben.entries.size();
        ada.sendAll(frames);
        for (Map<String, Object> entry : ben.have(before + frames.size()).subList(before, before + frames.size())) {
            String id = (String) entry.get("client_msg_id");
            check(entry.get("body").equals(bodies.remove(id)), id + " came changed");
        }
        check(bodies.isEmpty(), "each came once");
    }

    static void checkBodyLimit(Session ada, Session ben, String to) throws Exception {
        String whole = letters(BODY_BYTES_MAX - 2);
        int before = ben.entries.size();
        Map<String, Object> receipt = ada.send(to, Json.quote(whole));
        check(receipt.containsKey("seq"), receipt);
        check(ben.have(before + 1).get(before).get("body").equals(whole), "64 KiB came changed");
        Map<String, Object> refused = ada.send(to, Json.quote(whole + "x"));
        check("limit_exceeded".equals(refused.get("code")), refused);
        check("pong".equals(ada.ask("ping", "").get("t")), "the session goes on");
    }

    static void checkPings(Session ada) throws Exception {
        for (int length : new int[] {0, 1, 125}) {
            byte[] payload = new byte[length];
            RANDOM.nextBytes(payload);
            ada.socket.sendPing(ByteBuffer.wrap(payload)).get(PATIENCE_S, TimeUnit.SECONDS);
            check(ByteBuffer.wrap(payload).equals(ada.pongs.poll(PATIENCE_S, TimeUnit.SECONDS)), "a pong of the same payload");
        }
        check("pong".equals(ada.ask("ping", "").get("t")), "a pong");
    }

    static void checkParts(Session ada, Session ben, String to) throws Exception {
        String text = "{\"t\":\"send\",\"ref\":77,\"to\":\"" + to + "\",\"body\":\"in parts: äöü\"}";
        int before = ben.entries.size();
        for (int n = 0; n < text.length(); n += 5) {
            int end = Math.min(n + 5, text.length());
            ada.socket.sendText(text.substring(n, end), end == text.length()).get(PATIENCE_S, TimeUnit.SECONDS);
        }
        check(ben.have(before + 1).get(before).get("body").equals("in parts: äöü"), "put together");
    }

    @SuppressWarnings("unchecked")
    static void checkConversations(Session ada) throws Exception {
        Set<Object> ids = new HashSet<>();
        String after = "";
        while (true) {
            Map<String, Object> page = ada.ask("conversations", ",\"limit\":2" + after);
            check("conversations".equals(page.get("t")), page);
            for (Object conversation : (List<Object>) page.get("conversations")) {
                ids.add(((Map<String, Object>) conversation).get("id"));
            }
            if (page.get("next") == null) {
                break;
            }
            after = ",\"after\":" + Json.quote((String) page.get("next"));
        }
        check(ids.size() == 4, ids);
    }

    @SuppressWarnings("unchecked")
    static void checkResume(Session ada, String to, String token) throws Exception {
        Session ben = Session.bind(token, "tablet", null);
        ada.send(to, "{\"before\":1}");
        ben.have(1);
        String cursor = ben.cursor;
        ben.socket.abort();
        for (int n = 0; n < 3; n++) {
            ada.send(to, "{\"missed\":" + n + "}");
        }
        Session again = Session.bind(token, "tablet", cursor);
        check(Map.of("complete", true).equals(again.bound.get("resume")), again.bound);
        again.have(3);
        for (int n = 0; n < 3; n++) {
            check(Map.of("missed", (double) n).equals(again.entries.get(n).get("body")), again.entries);
        }
        Session third = Session.bind(token, "tablet", again.cursor);
        check("pong".equals(third.ask("ping", "").get("t")) && third.entries.isEmpty(), "what was handed over came again");
    }

    static void checkBadCursor(String token) throws Exception {
        Session session = Session.connect();
        session.tell("{\"t\":\"bind\",\"token\":\"" + token + "\",\"device_id\":\"watch\",\"cursor\":\"of.another.server\"}");
        Map<String, Object> refusal = session.next();
        check("cursor_invalid".equals(refusal.get("code")) && Boolean.FALSE.equals(refusal.get("retry")), refusal);
        End end = session.ended.get(PATIENCE_S, TimeUnit.SECONDS);
        check(end.equals(new End(4014, "cursor_invalid")), end);
    }

    static void checkClose(String token) throws Exception {
        for (int code : new int[] {1000, 3999, 4999}) {
            Session session = Session.bind(token, "watch", null);
            session.socket.sendClose(code, "bye").get(PATIENCE_S, TimeUnit.SECONDS);
            End end = session.ended.get(PATIENCE_S, TimeUnit.SECONDS);
            check(end.code() == code, end);
        }
    }

    public static void main(String[] arguments) throws Exception {
        System.out.println("TAP version 13\n# client: java.net.http " + System.getProperty("java.version"));
        String name = System.getenv("SUITE");
        String ben_id = name + "-ben";
        String benToken = System.getenv("TOKEN_BEN");
        String cy = System.getenv("TOKEN_CY");
        Session ada = Session.bind(System.getenv("TOKEN_ADA"), "phone", null);
        Session ben = Session.bind(benToken, "phone", null);
        Map<String, Check> checks = new LinkedHashMap<>();
        checks.put("a message is acknowledged and comes to both, unchanged", () -> {
            String text = "grüße, 你好, 😀 \u0000 \\ \"";
            Map<String, Object> receipt = ada.send(ben_id, "{\"text\":" + Json.quote(text) + "}");
            Map<String, Object> his = ben.have(1).get(0);
            check(ada.have(1).get(0).equals(his), ada.entries);
            check(his.get("seq").equals(receipt.get("seq")) && his.get("from").equals(name + "-ada"), his);
            check(Map.of("text", text).equals(his.get("body")), his);
        });
        checks.put("every length from 0 to 300 and around 65,535 and 65,536", () -> checkLengths(ada, ben, ben_id));
        checks.put("a body of 64 KiB is taken, one byte more is refused", () -> checkBodyLimit(ada, ben, ben_id));
        checks.put("a ping of the protocol is answered with its payload", () -> checkPings(ada));
        checks.put("a message in parts is one", () -> checkParts(ada, ben, ben_id));
        checks.put("conversations come page by page", () -> {
            ada.send(name + "-cy", "\"so that there are two direct ones\"");
            checkConversations(ada);
        });
        checks.put("after a cut what was missed comes, once", () -> checkResume(ada, ben_id, benToken));
        checks.put("a cursor of another server is refused by a code of its own", () -> checkBadCursor(cy));
        checks.put("a goodbye is answered with its code", () -> checkClose(cy));
        int count = 0;
        boolean failed = false;
        for (Map.Entry<String, Check> each : checks.entrySet()) {
            count++;
            try {
                each.getValue().run();
                System.out.println("ok " + count + " - " + each.getKey());
            } catch (Exception error) {
                failed = true;
                System.out.println("not ok " + count + " - " + each.getKey() + "\n# " + String.valueOf(error).replace("\n", "\n# "));
            }
        }
        System.out.println("1.." + count);
        System.exit(failed ? 1 : 0);
    }

    /** JSON into maps, lists, strings, doubles, booleans and null. */
    static class Json {
        final String text;
        int at;

        Json(String text) {
            this.text = text;
        }

        static Object read(String text) {
            Json json = new Json(text);
            Object value = json.value();
            json.space();
            check(json.at == text.length(), "more than one value");
            return value;
        }

        static String quote(String text) {
            StringBuilder out = new StringBuilder("\"");
            for (char c : text.toCharArray()) {
                if (c == '"' || c == '\\') {
                    out.append('\\').append(c);
                } else if (c < ' ') {
                    out.append(String.format("\\u%04x", (int) c));
                } else {
                    out.append(c);
                }
            }
            return out.append('"').toString();
        }

        void space() {
            while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
                at++;
            }
        }

        boolean took(char c) {
            space();
            boolean there = at < text.length() && text.charAt(at) == c;
            at += there ? 1 : 0;
            return there;
        }

        Object value() {
            if (took('{')) {
                Map<String, Object> object = new HashMap<>();
                while (!took('}')) {
                    space();
                    String name = string();
                    check(took(':'), "a colon");
                    object.put(name, value());
                    took(',');
                }
                return object;
            }
            if (took('[')) {
                List<Object> list = new ArrayList<>();
                while (!took(']')) {
                    list.add(value());
                    took(',');
                }
                return list;
            }
            if (text.charAt(at) == '"') {
                return string();
            }
            int start = at;
            while (at < text.length() && ",]} \t\r\n".indexOf(text.charAt(at)) < 0) {
                at++;
            }
            String word = text.substring(start, at);
            return switch (word) {
                case "true" -> true;
                case "false" -> false;
                case "null" -> null;
                default -> Double.valueOf(word);
            };
        }

        String string() {
            check(text.charAt(at) == '"', "a string at " + at);
            StringBuilder out = new StringBuilder();
            for (at++; text.charAt(at) != '"'; at++) {
                char c = text.charAt(at);
                if (c != '\\') {
                    out.append(c);
                    continue;
                }
                c = text.charAt(++at);
                if (c == 'u') {
                    out.append((char) Integer.parseInt(text.substring(at + 1, at + 5), 16));
                    at += 4;
                } else {
                    int known = "bfnrt".indexOf(c);
                    out.append(known < 0 ? c : "\b\f\n\r\t".charAt(known));
                }
            }
            at++;
            return out.toString();
        }
    }
}
