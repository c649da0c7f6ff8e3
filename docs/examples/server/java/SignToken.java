import static java.nio.charset.StandardCharsets.UTF_8;

import java.security.GeneralSecurityException;
import java.time.Duration;
import java.time.Instant;
import java.util.Base64;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

public final class SignToken {
    /** A token by which the app of {@code user} binds and calls for a lifetime; {@code key} is the setting token_key. */
    public static String sign(String key, String user, Duration lifetime) throws GeneralSecurityException {
        Instant now = Instant.now();
        String subject = user.replace("\\", "\\\\").replace("\"", "\\\""); // ids hold no control characters
        String claims = "{\"sub\":\"" + subject + "\",\"iat\":" + now.getEpochSecond()
                + ",\"exp\":" + now.plus(lifetime).getEpochSecond() + "}";
        Base64.Encoder base64 = Base64.getUrlEncoder().withoutPadding();
        String unsigned = base64.encodeToString("{\"alg\":\"HS256\",\"typ\":\"JWT\"}".getBytes(UTF_8))
                + "." + base64.encodeToString(claims.getBytes(UTF_8));
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec(key.getBytes(UTF_8), "HmacSHA256"));
        return unsigned + "." + base64.encodeToString(mac.doFinal(unsigned.getBytes(UTF_8)));
    }
}
