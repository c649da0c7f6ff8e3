import static java.nio.charset.StandardCharsets.UTF_8;

import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.time.Duration;
import java.time.Instant;
import java.util.HexFormat;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

public final class VerifyWebhook {
    /** Whether {@code body}, the bytes as they came, was signed by Tidings within the tolerance of {@code now}. */
    public static boolean verify(String secret, String timestamp, String signature, byte[] body, Instant now,
            Duration tolerance) throws GeneralSecurityException {
        if (timestamp == null || signature == null || !timestamp.matches("[0-9]{1,12}")) {
            return false;
        }
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec(secret.getBytes(UTF_8), "HmacSHA256"));
        mac.update((timestamp + ".").getBytes(UTF_8));
        byte[] expected = HexFormat.of().formatHex(mac.doFinal(body)).getBytes(UTF_8);
        Instant signed = Instant.ofEpochSecond(Long.parseLong(timestamp));
        boolean isFresh = Duration.between(signed, now).abs().compareTo(tolerance) <= 0;
        return MessageDigest.isEqual(expected, signature.getBytes(UTF_8)) && isFresh;
    }
}
