// `Sign KEY USER SECONDS` prints a token. Arguments come in the machine's character set, so here they come in UTF-8 from the input.

import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;

public class Sign {
    public static void main(String[] none) throws Exception {
        String[] arguments = new String(System.in.readAllBytes(), UTF_8).split("\n");
        System.out.println(SignToken.sign(arguments[0], arguments[1], Duration.ofSeconds(Long.parseLong(arguments[2]))));
    }
}
