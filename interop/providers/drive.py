"""Drives a double of the providers' push services (a program in any language), and servers whose settings point at it; the double
tells on its standard output what came.

    drive.py <command of the double...>
"""

import json
import os
import pathlib
import queue
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

INTEROP = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(INTEROP))

from harness.api import api, call, token  # noqa: E402
from harness.certificates import Authority  # noqa: E402
from harness.server import Server  # noqa: E402
from harness.tap import Tap  # noqa: E402

PATIENCE_S = 60
APNS_TOKEN = "740f4707bebcf74f9b7c25d48e3358945f6aa01da5ddb387462c7eaf61bb78ad"
HUAWEI_TOKEN = "IQAAAACy0QwmAACr5hKQ5nXQDJ9pX5tD1vVhFe"
FCM_TOKEN = "dEviCe:APA91bHun4MxP5egoKMwt2KZFBaFUH-1RYqx"


def check(condition, why=""):
    if not condition:
        raise AssertionError(why)


class Double:
    def __init__(self, command, folder):
        folder = pathlib.Path(folder)
        authority = Authority(folder / "authority")
        certificate, key = authority.issue("apns")
        tls = {"key": str(key), "cert": str(certificate), "ca": str(authority.root)}
        self.process = subprocess.Popen(
            command, env={**os.environ, "APNS_TLS": json.dumps(tls)}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.told = queue.Queue()
        threading.Thread(target=lambda: [self.told.put(json.loads(line)) for line in self.process.stdout], daemon=True).start()
        first = self.told.get(timeout=300)  # a first run may compile
        self.client, self.ports, self.vapid = first["client"], first["ports"], first["vapid"]
        self.keys, self.huawei = first["subscription_keys"], first["huawei_app"]
        self.apple_key, self.account = folder / "AuthKey.p8", folder / "account.json"
        self.apple_key.write_text(first["apple_key"])
        self.account.write_text(json.dumps(first["service_account"]))
        self.root = authority.root
        # What proves the sender to APNs in place of a token.
        sender, sender_key = authority.issue("sender", new_key=("-newkey", "rsa:2048"), usage="clientAuth")
        self.certificate, self.expired = folder / "sender-with-key.pem", folder / "expired-with-key.pem"
        self.certificate.write_text(sender.read_text() + sender_key.read_text())
        sender, sender_key = authority.issue("expired", new_key=("-newkey", "rsa:2048"), usage="clientAuth", days=0)
        self.expired.write_text(sender.read_text() + sender_key.read_text())

    def next(self, provider, patience=PATIENCE_S):
        """The next request to this provider; those to others are kept."""
        end, others = time.monotonic() + patience, []
        try:
            while True:
                told = self.told.get(timeout=max(0.0, end - time.monotonic()))
                check(told["provider"] != "double", told)
                if told["provider"] == provider:
                    return told
                others.append(told)
        except queue.Empty:
            raise AssertionError(f"nothing came to {provider} within {patience} s, but {others}") from None
        finally:
            for other in others:
                self.told.put(other)

    def plan(self, **answers):
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports['control']}/plan", method="POST", data=json.dumps(answers).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            check(answer.status == 204)

    def subscription(self, path="/push/ben", port=None):
        endpoint = f"http://127.0.0.1:{port or self.ports['web_push']}{path}"
        return {"provider": "web_push", "subscription": {"endpoint": endpoint, "expirationTime": None, "keys": self.keys}}

    def settings(self, *providers, **more):
        """The settings of a server that uses these providers."""
        all_settings = {
            "apns": {"apns.url": f"http://127.0.0.1:{self.ports['apns']}", "apns.topic": "com.example.app", "apns.key_file": self.apple_key,
                     "apns.key_id": "KEY1234567", "apns.team_id": "TEAM123456"},
            "fcm": {"fcm.url": f"http://127.0.0.1:{self.ports['fcm']}", "fcm.service_account_file": self.account},
            "huawei": {"huawei.url": f"http://127.0.0.1:{self.ports['huawei']}",
                       "huawei.token_url": f"http://127.0.0.1:{self.ports['huawei']}/oauth2/v3/token",
                       "huawei.app_id": self.huawei["id"], "huawei.app_secret": self.huawei["secret"], "huawei.category": "IM",
                       "huawei.badge_class": "com.example.app.MainActivity"},
            "web_push": {"web_push.private_key": self.vapid["private"], "web_push.public_key": self.vapid["public"],
                         "web_push.subject": "mailto:ops@example.com",
                         "web_push.services": f"http://127.0.0.1:{self.ports['web_push']},http://127.0.0.1:1"},
        }
        chosen = {name: value for provider in providers for name, value in all_settings[provider].items()}
        return {**chosen, "notifications.backoff_min_ms": 20, "notifications.backoff_max_ms": 200, "notifications.repeat_after_ms": 0, **more}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


class App:
    """The app's server and its users, of whom nobody is connected."""

    def __init__(self, server):
        self.url = server.url
        self.api("PUT", "/v1/users", {"users": [{"id": "ada", "name": "Ada"}, {"id": "ben"}, {"id": "cleo"}]})
        self.api("POST", "/v1/conversations", {"id": "house", "kind": "group", "name": "House 7", "owner": "ada", "members": ["ben", "cleo"]})

    def api(self, method, path, body=None, key=None):
        return api(method, path, body, url=self.url, key=key)

    def call(self, method, path, body=None, key=None):
        return call(method, path, body, url=self.url, key=key)

    def register(self, user, device, push_token, key=None):
        self.api("PUT", f"/v1/users/{user}/devices/{device}/push_token", push_token, key=key)

    def devices(self, user):
        return [(each["device_id"], each["provider"]) for each in self.api("GET", f"/v1/users/{user}/push_tokens")["push_tokens"]]

    def send(self, text, to="ben", **more):
        target = {"conversation": to} if to == "house" else {"to": to}
        return self.api("POST", "/v1/messages", {"from": "ada", "body": {"text": text}, **target, **more})

    def metric(self, name, **labels):
        request = urllib.request.Request(f"{self.url}/metrics", headers={"Authorization": f"Bearer {os.environ['TIDINGS_API_KEY']}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        wanted = {f'{label}="{value}"' for label, value in labels.items()}
        found = [line for line in lines if line.split("{")[0].split(" ")[0] == name and all(label in line for label in wanted)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)


def until(condition, why):
    """Waits for a condition; answers with what it answers."""
    end = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        check(time.monotonic() < end, why)
        time.sleep(0.05)
    return found


def web_push(tap, double):
    with Server(settings=double.settings("web_push")) as server:
        app = App(server)

        def shown():
            app.register("me", "browser", double.subscription(), key=token("ben"))
            check(app.devices("ben") == [("browser", "web_push")], app.devices("ben"))
            text = 'naïve ≥ ☕ "quoted" \u2028 {sender}'
            seq = app.send(text)["seq"]
            came = double.next("web_push")
            check("error" not in came, came)
            body, headers = came["body"], came["headers"]
            check((body["title"], body["body"], body["badge"], body["conversation"], body["seq"]) == ("Ada", text, 1, "ada~ben", seq), body)
            check(came["method"] == "POST" and came["path"] == "/push/ben", came)
            check(headers["content-encoding"] == "aes128gcm" and headers["urgency"] == "high", headers)
            check(0 < int(headers["ttl"]) <= 86_400 and 0 < len(headers["topic"]) <= 32, headers)
            check(headers["topic"] == body["tag"], came)
        tap.case("a message to a user who is away reaches the browser's push service, and is decrypted by http_ece", shown)

        def vapid():
            app.send("signed")
            came = double.next("web_push")
            check(came["jwt"]["key"] == double.vapid["public"] and came["jwt"]["sub"] == "mailto:ops@example.com", came)
            check(0 < came["jwt"]["exp"] - time.time() <= 24 * 60 * 60, came["jwt"])
            check(came["body"]["badge"] == 2, came["body"])
        tap.case("VAPID is verified by jose with the key that the header names, for this service and less than a day", vapid)

        def group():
            app.send("to all", to="house")
            body = double.next("web_push")["body"]
            check((body["title"], body["body"]) == ("House 7", "Ada: to all"), body)
        tap.case("a group's message is shown with the group's name and its sender's", group)

        def longest():
            app.send("😀" * 5_000)
            came = double.next("web_push")
            check(came["size"] <= 4_096 and came["body"]["body"].endswith("…"), came)
            app.send("\"\\\n" * 5_000)
            check(double.next("web_push")["size"] <= 4_096)
        tap.case("a long text is cut to what push services take", longest)

        def later():
            double.plan(web_push=[{"status": 503, "headers": {"retry-after": "1"}}, {"status": 429, "headers": {"retry-after": "1"}}])
            app.send("again")
            began = time.monotonic()
            came = [double.next("web_push") for _ in range(3)]
            check([each["status"] for each in came] == [503, 429, 201], came)
            check(time.monotonic() - began >= 2, "Retry-After was not waited for")
            check(len({each["headers"]["topic"] for each in came}) == 1, came)
        tap.case("503 and 429 are tried again, after what Retry-After says", later)

        def crashed():
            double.plan(web_push=[{"status": 503, "headers": {"retry-after": "1"}}])
            seq = app.send("survives")["seq"]
            topic = double.next("web_push")["headers"]["topic"]
            server.kill()
            server.start()
            app.url = server.url
            came = double.next("web_push")
            check((came["body"]["seq"], came["body"]["body"], came["headers"]["topic"]) == (seq, "survives", topic), came)
        tap.case("a notification that is to be tried again survives kill -9, with the same topic", crashed)

        def refused():
            double.plan(web_push=[{"status": 413}])
            app.send("too large")
            double.next("web_push")
            until(lambda: app.metric("tidings_provider_notifications_total", provider="web_push", outcome="dead_refused") == 1, "not counted as dead")
            app.send("next")
            check(double.next("web_push")["body"]["body"] == "next", "the refused one was tried again")
        tap.case("413 is not tried again, and counted", refused)

        def not_told():
            app.send("silent", silent=True)
            app.send("skipped", skip_push=True)
            app.send("last")
            check(double.next("web_push")["body"]["body"] == "last", "one was told that should not be")
        tap.case("silent messages and those with skip_push are not told", not_told)

        def elsewhere():
            for endpoint in ("https://example.com/push", "http://127.0.0.1:2/push", "http://push.example.com/x", "file:///etc/passwd"):
                body = {"provider": "web_push", "subscription": {"endpoint": endpoint, "keys": double.keys}}
                status, _, answer = app.call("PUT", "/v1/users/ben/devices/other/push_token", body)
                check(status == 422 and answer["code"] == "invalid_field", (endpoint, status, answer))
            status, _, answer = app.call("PUT", "/v1/users/ben/devices/other/push_token", {"provider": "apns", "token": APNS_TOKEN})
            check(status == 409, (status, answer))
        tap.case("addresses that the settings do not name are refused, and providers that are not set up", elsewhere)

        def foreign():
            ben = token("ben")
            for method, path in (("PUT", "devices/browser/push_token"), ("DELETE", "devices/browser/push_token"), ("GET", "push_tokens")):
                body = double.subscription("/push/cleo") if method == "PUT" else None
                status, _, answer = app.call(method, f"/v1/users/cleo/{path}", body, key=ben)
                check(status == 403, (method, status, answer))
            own = app.api("GET", "/v1/users/me/push_tokens", key=ben)["push_tokens"]
            check(len(own) == 1 and "/push/ben" not in json.dumps(own), own)
        tap.case("a user's token reaches the user's own devices alone, and no subscription is shown", foreign)

        def unreachable():
            app.register("cleo", "browser", double.subscription("/push/cleo", port=1))
            for number in range(20):
                app.send(f"lost {number}", to="cleo")
            app.send("not delayed")
            check(double.next("web_push", 20)["body"]["body"] == "not delayed")
            until(lambda: app.metric("tidings_provider_notifications_total", outcome="retried") > 2, "nothing was tried again")
        tap.case("a service that cannot be reached delays no other's notifications", unreachable)

        def gone():
            for status in (404, 410):
                app.register("ben", "browser", double.subscription())
                double.plan(web_push=[{"status": status}])
                app.send(f"gone by {status}")
                double.next("web_push")
                until(lambda: app.devices("ben") == [], f"{status} did not end the subscription")
        tap.case("404 and 410 end the subscription", gone)

        def moved():
            app.register("ben", "browser", double.subscription())
            app.register("cleo", "browser", double.subscription())
            check((app.devices("ben"), app.devices("cleo")) == ([], [("browser", "web_push")]), "the former user still has it")
            app.send("to the former user")
            app.send("to the new user", to="cleo")
            # What could not be sent to her before goes to her new subscription, too.
            while (body := double.next("web_push")["body"]["body"]) != "to the new user":
                check(body.startswith("lost"), f"{body!r} was told")
            app.api("DELETE", "/v1/users/cleo/devices/browser/push_token")
            check(app.devices("cleo") == [], "it was not removed")
        tap.case("a subscription that another user registers is no longer the former user's", moved)

        def private():
            log = server.log()
            for name, secret in {"endpoint": "/push/ben", "key": double.keys["auth"], "text": "naïve", "private key": double.vapid["private"]}.items():
                check(secret not in log, f"the log has a subscription's {name}")
        tap.case("the log has neither subscriptions nor keys nor texts", private)


def apns(tap, double):
    with Server(settings=double.settings("apns", **{"notifications.hide_text": "true"})) as server:
        app = App(server)
        app.register("ben", "phone", {"provider": "apns", "token": APNS_TOKEN})

        def taken():
            app.send("secret text")
            came = double.next("apns")
            headers, body = came["headers"], came["body"]
            check(came["http"] == "2.0" and came["method"] == "POST" and came["path"] == f"/3/device/{APNS_TOKEN}", came)
            check((headers["apns-topic"], headers["apns-push-type"], headers["apns-priority"]) == ("com.example.app", "alert", "10"), headers)
            check(len(headers["apns-id"]) == 36 and len(headers["apns-collapse-id"]) <= 64, headers)
            check(0 < int(headers["apns-expiration"]) - time.time() <= 86_400, headers)
            check(body["aps"]["alert"] == {"title": "Ada", "body": "New message"} and body["aps"]["badge"] == 1, body)
            check(body["conversation"] == "ada~ben" and came["size"] <= 4_096, body)
        tap.case("APNs is sent what it documents, over HTTP/2, and no text with notifications.hide_text", taken)

        def signed():
            app.send("signed")
            jwt = double.next("apns")["jwt"]
            check((jwt["alg"], jwt["kid"], jwt["iss"]) == ("ES256", "KEY1234567", "TEAM123456"), jwt)
            check(abs(jwt["iat"] - time.time()) < 60 * 60, jwt)
        tap.case("the sender's token is verified by jose with the public key", signed)

        def later():
            shutdown = {"status": 503, "headers": {"retry-after": "1"}, "body": {"reason": "Shutdown"}}
            slow = {"status": 429, "body": {"reason": "TooManyRequests"}}
            wrong = {"status": 403, "body": {"reason": "InvalidProviderToken"}}
            double.plan(apns=[shutdown, slow, wrong, {"status": 500, "body": {"reason": "InternalServerError"}}])
            app.send("again")
            came = [double.next("apns") for _ in range(5)]
            check([each["status"] for each in came] == [503, 429, 403, 500, 200], came)
            check(len({each["headers"]["apns-id"] for each in came}) == 1, "a retry has another id")
        tap.case("503, 429, 403 and 500 are tried again with the same apns-id", later)

        def crashed():
            double.plan(apns=[{"hang": True}])
            app.send("in flight")
            first = double.next("apns")
            server.kill()
            server.start()
            app.url = server.url
            again = double.next("apns")
            for name in ("apns-id", "apns-collapse-id"):
                check(first["headers"][name] == again["headers"][name], (first, again))
            check(first["body"]["seq"] == again["body"]["seq"], (first, again))
        tap.case("a notification that was under way at a kill -9 comes again, with the same ids", crashed)

        def never():
            for reason in ("PayloadTooLarge", "BadTopic", "DeviceTokenNotForTopic"):
                double.plan(apns=[{"status": 400, "body": {"reason": reason}}])
                app.send(reason)
                double.next("apns")
            app.send("next")
            check(double.next("apns")["status"] == 200)
            check(app.metric("tidings_provider_notifications_total", provider="apns", outcome="dead_refused") == 3)
            check(app.devices("ben") == [("phone", "apns")], "the token was removed")
        tap.case("what would be refused again is counted and not sent again", never)

        def gone():
            old = {"status": 410, "body": {"reason": "Unregistered", "timestamp": int(time.time() * 1000) - 3_600_000}}
            double.plan(apns=[old])
            app.send("registered since")
            double.next("apns")
            app.send("still there")
            check(double.next("apns")["status"] == 200)
            check(app.devices("ben") == [("phone", "apns")], "a token that was registered later was removed")
            for answer in (
                {"status": 410, "body": {"reason": "Unregistered", "timestamp": int(time.time() * 1000) + 60_000}},
                {"status": 400, "body": {"reason": "BadDeviceToken"}},
            ):
                app.register("ben", "phone", {"provider": "apns", "token": APNS_TOKEN})
                double.plan(apns=[answer])
                app.send("gone")
                double.next("apns")
                until(lambda: app.devices("ben") == [], f"{answer} did not remove the token")
        tap.case("410 and BadDeviceToken remove the token, unless it was registered after the time of the 410", gone)

        def private():
            check(APNS_TOKEN not in server.log(), "the log has a token")
        tap.case("the log has no token", private)

    certificate = {"apns.url": f"https://127.0.0.1:{double.ports['apns_tls']}", "apns.topic": "com.example.app",
                   "apns.certificate_file": double.certificate, "notifications.ca_file": double.root}
    with Server(settings=certificate) as server:
        app = App(server)

        def by_certificate():
            app.register("ben", "phone", {"provider": "apns", "token": APNS_TOKEN})
            app.send("by certificate")
            came = double.next("apns")
            check((came["certificate"], came["authorized"], came["http"]) == ("sender", True, "2.0"), came)
            check("authorization" not in came["headers"], came["headers"])
        tap.case("with a certificate in place of a key the sender is known by TLS", by_certificate)

    with Server(settings={**certificate, "apns.certificate_file": double.expired, "notifications.backoff_min_ms": 20, "notifications.backoff_max_ms": 200}) as server:
        app = App(server)

        def by_an_expired_one():
            app.register("ben", "phone", {"provider": "apns", "token": APNS_TOKEN})
            app.send("waits for an operator")
            until(lambda: app.metric("tidings_provider_failing", provider="apns") == 1, "APNs does not count as failing")
            until(lambda: app.metric("tidings_provider_notifications_total", provider="apns", outcome="retried") >= 2, "it is not tried again")
            check(app.metric("tidings_provider_notifications_total", provider="apns", outcome="dead_refused") == 0, "it was given up")
            check(app.devices("ben") == [("phone", "apns")], "the token was removed")
            check(APNS_TOKEN not in server.log(), "the log has a token")
        tap.case("with a certificate that has expired nothing is lost, and the provider counts as failing", by_an_expired_one)


def fcm(tap, double):
    with Server(settings=double.settings("fcm")) as server:
        app = App(server)
        app.register("ben", "phone", {"provider": "fcm", "token": FCM_TOKEN})

        def taken():
            app.send("hello")
            granted, came = double.next("oauth"), double.next("fcm")
            check(granted["jwt"]["alg"] == "RS256" and granted["jwt"]["kid"] == "key-1", granted)
            check(granted["grant"] == "urn:ietf:params:oauth:grant-type:jwt-bearer" and granted["type"] == "application/x-www-form-urlencoded", granted)
            check("firebase.messaging" in granted["jwt"]["scope"] and granted["jwt"]["exp"] - granted["jwt"]["iat"] <= 3_600, granted)
            check(came["path"] == "/v1/projects/project-7/messages:send" and came["known"] and came["size"] <= 4_096, came)
            message = came["body"]["message"]
            check(message["token"] == FCM_TOKEN and message["notification"] == {"title": "Ada", "body": "hello"}, message)
            check(message["data"] == {"conversation": "ada~ben", "seq": "1"}, message)
            android = message["android"]
            check(android["priority"] == "HIGH" and android["ttl"].endswith("s") and android["notification"]["notification_count"] == 1, android)
            check(android["collapse_key"] == android["notification"]["tag"], android)
            apns = message["apns"]
            check(apns["headers"]["apns-collapse-id"] == android["collapse_key"] and apns["headers"]["apns-priority"] == "10", apns)
            check(apns["payload"]["aps"] == {"badge": 1, "sound": "default", "thread-id": "ada~ben"}, apns)
        tap.case("FCM is sent what it documents, with an access token that a signed one was exchanged for", taken)

        def kept():
            app.send("once more")
            double.next("fcm")
            check(all(each["provider"] != "oauth" for each in list(double.told.queue)), "another access token was fetched")
        tap.case("the access token is kept", kept)

        def revoked():
            double.plan(fcm=[{"status": 401, "body": {"error": {"status": "UNAUTHENTICATED"}}}])
            app.send("revoked")
            check([double.next("fcm")["status"], double.next("oauth")["status"], double.next("fcm")["status"]] == [401, 200, 200])
        tap.case("an access token that is refused is fetched anew", revoked)

        def error(status, name, code, **headers):
            details = [{"@type": "type.googleapis.com/google.firebase.fcm.v1.FcmError", "errorCode": code}]
            return {"status": status, "headers": headers, "body": {"error": {"code": status, "status": name, "details": details}}}

        def later():
            double.plan(fcm=[error(503, "UNAVAILABLE", "UNAVAILABLE", **{"retry-after": "1"}), error(429, "RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED", **{"retry-after": "1"}),
                             error(500, "INTERNAL", "INTERNAL")])
            app.send("again")
            check([double.next("fcm")["status"] for _ in range(4)] == [503, 429, 500, 200])
        tap.case("UNAVAILABLE, QUOTA_EXCEEDED and INTERNAL are tried again", later)

        def never():
            double.plan(fcm=[error(400, "INVALID_ARGUMENT", "INVALID_ARGUMENT"), error(403, "PERMISSION_DENIED", "SENDER_ID_MISMATCH")])
            for text in ("invalid", "mismatch", "next"):
                app.send(text)
                check(double.next("fcm")["body"]["message"]["notification"]["body"] == text, "a refused one was sent again")
            check(app.devices("ben") == [("phone", "fcm")], "the token was removed")
        tap.case("INVALID_ARGUMENT and SENDER_ID_MISMATCH are not tried again", never)

        def gone():
            violation = {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [{"field": "message.token", "description": "Invalid registration token"}]}
            invalid = {"status": 400, "body": {"error": {"code": 400, "status": "INVALID_ARGUMENT", "details": [violation]}}}
            for answer in (error(404, "NOT_FOUND", "UNREGISTERED"), invalid):
                app.register("ben", "phone", {"provider": "fcm", "token": FCM_TOKEN})
                double.plan(fcm=[answer])
                app.send("gone")
                double.next("fcm")
                until(lambda: app.devices("ben") == [], f"{answer} did not remove the token")
        tap.case("UNREGISTERED removes the token, and so does an INVALID_ARGUMENT that blames it", gone)


def answered(tap, double, app, provider, token, cases, body_of):
    """Each documented answer, and what becomes of the notification and of the token: `again`, `dead` or `gone`."""
    def count(outcome):
        return app.metric("tidings_provider_notifications_total", provider=provider, outcome=outcome)

    def case(answer, becomes):
        app.register("ben", "phone", {"provider": provider, "token": token})
        before = {outcome: count(outcome) for outcome in ("retried", "dead_refused", "token_gone", "accepted")}
        double.plan(**{provider: [answer]})
        text = f"answered by {json.dumps(answer)[:60]}"
        app.send(text)
        first = double.next(provider)
        check(first["status"] == answer["status"], first)
        if becomes == "again":
            again = double.next(provider)
            check(again["status"] == 200 and body_of(again) == body_of(first), (first, again))
            until(lambda: count("retried") == before["retried"] + 1 and count("accepted") == before["accepted"] + 1, f"{answer}: not counted")
        else:
            outcome = {"dead": "dead_refused", "gone": "token_gone"}[becomes]
            until(lambda: count(outcome) == before[outcome] + 1, f"{answer}: not counted as {outcome}")
        expected = [] if becomes == "gone" else [("phone", provider)]
        until(lambda: app.devices("ben") == expected, f"{answer}: the devices are {app.devices('ben')}")
        if becomes == "dead":
            page = app.api("GET", f"/v1/notifications/dead-letters?channel={provider}&user=ben")["dead_letters"]
            check(page and token not in json.dumps(page) and "answered by" not in json.dumps(page), page)
        check(app.metric("tidings_provider_failing", provider=provider) == 0, f"{answer}: the provider counts as failing")

    for name, answer, becomes in cases:
        tap.case(f"{provider} {name}: {becomes}", lambda answer=answer, becomes=becomes: case(answer, becomes))


def documented_errors(tap, double):
    soon = {"retry-after": "0"}
    with Server(settings=double.settings("apns")) as server:
        app = App(server)
        dead = ["BadCollapseId", "BadExpirationDate", "BadMessageId", "BadPriority", "BadTopic", "DeviceTokenNotForTopic", "DuplicateHeaders",
                "InvalidPushType", "MissingDeviceToken", "MissingTopic", "PayloadEmpty", "TopicDisallowed"]
        cases = [(f"400 {name}", {"status": 400, "body": {"reason": name}}, "dead") for name in dead]
        cases += [("400 BadDeviceToken", {"status": 400, "body": {"reason": "BadDeviceToken"}}, "gone"),
                  ("400 IdleTimeout", {"status": 400, "body": {"reason": "IdleTimeout"}}, "again")]
        cases += [(f"403 {name}", {"status": 403, "body": {"reason": name}}, "again") for name in (
            "BadCertificate", "BadCertificateEnvironment", "ExpiredProviderToken", "Forbidden", "InvalidProviderToken", "MissingProviderToken",
            "UnrelatedKeyIdInToken", "BadEnvironmentKeyIdInToken")]
        cases += [("404 BadPath", {"status": 404, "body": {"reason": "BadPath"}}, "dead"),
                  ("405 MethodNotAllowed", {"status": 405, "body": {"reason": "MethodNotAllowed"}}, "dead"),
                  ("410 ExpiredToken", {"status": 410, "body": {"reason": "ExpiredToken"}}, "gone"),
                  ("410 Unregistered", {"status": 410, "body": {"reason": "Unregistered", "timestamp": int(time.time() * 1000) + 600_000}}, "gone"),
                  ("413 PayloadTooLarge", {"status": 413, "body": {"reason": "PayloadTooLarge"}}, "dead")]
        cases += [(f"{status} {name}", {"status": status, "headers": soon, "body": {"reason": name}}, "again") for status, name in (
            (429, "TooManyProviderTokenUpdates"), (429, "TooManyRequests"), (500, "InternalServerError"), (503, "ServiceUnavailable"), (503, "Shutdown"))]
        answered(tap, double, app, "apns", APNS_TOKEN, cases, lambda came: came["body"]["seq"])

    def error(status, name, code):
        details = [{"@type": "type.googleapis.com/google.firebase.fcm.v1.FcmError", "errorCode": code}]
        return {"status": status, "headers": soon, "body": {"error": {"code": status, "status": name, "details": details}}}

    with Server(settings=double.settings("fcm")) as server:
        app = App(server)
        cases = [("UNREGISTERED", error(404, "NOT_FOUND", "UNREGISTERED"), "gone"),
                 ("INVALID_ARGUMENT", error(400, "INVALID_ARGUMENT", "INVALID_ARGUMENT"), "dead"),
                 ("SENDER_ID_MISMATCH", error(403, "PERMISSION_DENIED", "SENDER_ID_MISMATCH"), "dead"),
                 ("QUOTA_EXCEEDED", error(429, "RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED"), "again"),
                 ("UNAVAILABLE", error(503, "UNAVAILABLE", "UNAVAILABLE"), "again"),
                 ("INTERNAL", error(500, "INTERNAL", "INTERNAL"), "again"),
                 ("THIRD_PARTY_AUTH_ERROR", error(401, "UNAUTHENTICATED", "THIRD_PARTY_AUTH_ERROR"), "again"),
                 ("UNSPECIFIED_ERROR", error(400, "UNKNOWN", "UNSPECIFIED_ERROR"), "dead")]
        answered(tap, double, app, "fcm", FCM_TOKEN, cases, lambda came: came["body"]["message"]["data"]["seq"])


def huawei(tap, double):
    with Server(settings=double.settings("huawei")) as server:
        app = App(server)
        app.register("ben", "phone", {"provider": "huawei", "token": HUAWEI_TOKEN})

        def taken():
            app.send("hello")
            granted, came = double.next("huawei_oauth"), double.next("huawei")
            check(granted["fits"] and granted["type"] == "application/x-www-form-urlencoded", granted)
            check(came["method"] == "POST" and came["path"] == f"/v1/{double.huawei['id']}/messages:send" and came["known"], came)
            body = came["body"]
            message = body["message"]
            check(body["validate_only"] is False and message["token"] == [HUAWEI_TOKEN], body)
            check(message["notification"] == {"title": "Ada", "body": "hello"}, message)
            android = message["android"]
            check(json.loads(android["data"]) == {"conversation": "ada~ben", "seq": 1}, android)
            check(android["category"] == "IM" and android["ttl"].endswith("s") and 0 < int(android["ttl"][:-1]) <= 86_400, android)
            shown = android["notification"]
            check(shown["click_action"] == {"type": 3} and shown["badge"] == {"class": "com.example.app.MainActivity", "set_num": 1}, shown)
            app.send("again")
            second = double.next("huawei")["body"]["message"]["android"]
            check(second["notification"]["tag"] == shown["tag"] and second["bi_tag"] != android["bi_tag"], second)
            check(all(each["provider"] != "huawei_oauth" for each in list(double.told.queue)), "another access token was fetched")
        tap.case("Push Kit is sent what Huawei documents, with an access token that is kept", taken)

        def longest():
            app.send("\"\\\n" * 5_000)
            came = double.next("huawei")
            check(came["size"] - len(HUAWEI_TOKEN) <= 4_096, came["size"])
        tap.case("a long text is cut to what Push Kit takes", longest)

        def expired():
            double.plan(huawei=[{"status": 401, "body": {"code": "80200003", "msg": "Access token expired.", "requestId": "1"}}])
            app.send("expired")
            check([double.next("huawei")["status"], double.next("huawei_oauth")["status"], double.next("huawei")["status"]] == [401, 200, 200])
        tap.case("an access token that has expired is fetched anew", expired)

        def code(status, number, msg=""):
            return {"status": status, "headers": {"retry-after": "0"}, "body": {"code": number, "msg": msg, "requestId": "1"}}

        illegal = json.dumps({"success": 0, "failure": 1, "illegal_tokens": [HUAWEI_TOKEN]})
        cases = [("80300007", code(200, "80300007", "All the tokens are invalid"), "gone"), ("80100000 with the token", code(200, "80100000", illegal), "gone")]
        cases += [(f"{number}", code(400, number), "dead") for number in (
            "80100001", "80100003", "80100004", "80100013", "80100016", "80100018", "80300008", "80300010")]
        cases += [(f"{number}", code(200, number), "again") for number in ("80200001", "80200003", "80300002", "80300011", "80600003", "81000001")]
        cases += [(f"{status}", {"status": status, "headers": {"retry-after": "0"}}, "again") for status in (500, 502, 503)]
        answered(tap, double, app, "huawei", HUAWEI_TOKEN, cases, lambda came: came["body"]["message"]["android"]["data"])

        def private():
            log = server.log()
            check(HUAWEI_TOKEN not in log and double.huawei["secret"] not in log, "the log has a token or the secret")
        tap.case("the log has neither tokens nor the secret", private)


def dead_letters(tap, double):
    with Server(settings=double.settings("fcm")) as server:
        app = App(server)
        for user in ("ben", "cleo"):
            app.register(user, "phone", {"provider": "fcm", "token": f"{FCM_TOKEN}-{user}"})
        mismatch = {"status": 403, "body": {"error": {"status": "PERMISSION_DENIED", "details": [
            {"@type": "type.googleapis.com/google.firebase.fcm.v1.FcmError", "errorCode": "SENDER_ID_MISMATCH"}]}}}

        def replayed():
            double.plan(fcm=[mismatch, mismatch])
            app.send("secret text", to="house")
            seen = {double.next("fcm")["body"]["message"]["token"] for _ in range(2)}
            check(len(seen) == 2, seen)
            path = "/v1/notifications/dead-letters?channel=fcm&cause=SENDER_ID"
            page = until(lambda: (found := app.api("GET", path)["dead_letters"]) and len(found) == 2 and found, "no dead letters")
            check(sorted(letter["users"] for letter in page) == [["ben"], ["cleo"]] and all(letter["cause"] == "SENDER_ID_MISMATCH" for letter in page), page)
            check("secret" not in json.dumps(page) and FCM_TOKEN not in json.dumps(page), page)
            seq = page[0]["seq"]
            app.api("PUT", "/v1/users/cleo/conversations/house/read", {"seq": seq})
            server.kill()
            server.start()
            app.url = server.url
            answer = app.api("POST", "/v1/notifications/dead-letters/replay", {})
            cleo = next(letter["id"] for letter in page if letter["users"] == ["cleo"])
            check(answer == {"replayed": 1, "dropped": [{"id": cleo, "reason": "read"}]}, answer)
            came = double.next("fcm")
            check(came["body"]["message"]["token"].endswith("-ben") and came["status"] == 200, came)
            check(app.api("GET", path)["dead_letters"] == [], "they are still there")
            why = until(lambda: (found := app.api("GET", f"/v1/conversations/house/messages/{seq}/notifications?user=ben"))["outcome"] == "accepted" and found, "not accepted")
            check([step["outcome"] for step in why["steps"] if step.get("device") == "phone"] == ["refused", "replayed", "accepted"], why)
        tap.case("dead letters survive kill -9 and are replayed; one whose message was read is dropped with the reason", replayed)

        def counted():
            stats = {channel["channel"]: channel for channel in app.api("GET", "/v1/notifications/stats")["channels"]}["fcm"]
            check(stats["accepted"] >= 1 and stats["attempted"] >= 1 and stats["p99_ms"] >= stats["median_ms"], stats)
        tap.case("what came of the channel is counted, with the time until the provider took it", counted)

        def moved():
            app.register("cleo", "tablet", {"provider": "fcm", "token": f"{FCM_TOKEN}-ben"})
            check(app.devices("ben") == [], app.devices("ben"))
            app.send("for ben")
            app.send("for cleo", to="cleo")
            told = {double.next("fcm")["body"]["message"]["notification"]["body"] for _ in range(2)}
            check(told == {"for cleo"}, told)
        tap.case("a token that moved to another user's device is never used for the former user", moved)


def slow(tap, double):
    with Server(settings=double.settings("fcm", "web_push", **{"notifications.timeout_ms": 2_000})) as server:
        app = App(server)
        app.register("ben", "phone", {"provider": "fcm", "token": FCM_TOKEN})
        app.register("ben", "browser", double.subscription())

        def slowly():
            double.plan(fcm=[{"after_ms": 1_200}])
            app.send("slow")
            double.next("fcm")
            check(double.next("web_push")["body"]["body"] == "slow")
            until(lambda: app.metric("tidings_provider_notifications_total", provider="fcm", outcome="accepted") == 1, "it was not accepted")
            check(app.metric("tidings_provider_notifications_total", provider="fcm", outcome="retried") == 0, "it was sent again")
            channel = next(channel for channel in app.api("GET", "/v1/notifications/stats")["channels"] if channel["channel"] == "fcm")
            check(channel["p99_ms"] >= 1_100, channel)
        tap.case("a provider that answers 200 slowly is waited for, once", slowly)

        def never():
            double.plan(fcm=[{"hang": True}])
            app.send("hangs")
            double.next("fcm")
            check(double.next("web_push")["body"]["body"] == "hangs")
            again = double.next("fcm")
            check(again["body"]["message"]["notification"]["body"] == "hangs", again)
        tap.case("a provider that never answers is asked again after the time-out", never)


def several(tap, double):
    with Server(settings=double.settings("apns", "fcm", "web_push", **{"notifications.timeout_ms": 60_000})) as server:
        app = App(server)

        def isolated():
            app.register("ben", "phone", {"provider": "apns", "token": APNS_TOKEN})
            app.register("ben", "tablet", {"provider": "fcm", "token": FCM_TOKEN})
            app.register("ben", "browser", double.subscription())
            check(app.devices("ben") == [("browser", "web_push"), ("phone", "apns"), ("tablet", "fcm")], app.devices("ben"))
            double.plan(apns=[{"hang": True}])
            for number in range(3):
                seq = app.send(f"message {number}")["seq"]
                check(double.next("fcm")["body"]["message"]["data"]["seq"] == str(seq))
                check(double.next("web_push")["body"]["seq"] == seq)
            check(double.next("apns")["status"] == 200, "the first request came")
            check([each for each in list(double.told.queue) if each["provider"] == "apns"] == [], "APNs has answered")
        tap.case("a provider that never answers delays no other provider", isolated)

    with Server(settings=double.settings("apns", "web_push", **{"apns.url": "http://127.0.0.1:1"})) as server:
        app = App(server)

        def away():
            app.register("ben", "phone", {"provider": "apns", "token": APNS_TOKEN})
            app.register("ben", "browser", double.subscription())
            for number in range(20):
                app.send(f"message {number}")
                check(double.next("web_push")["body"]["body"] == f"message {number}")
            until(lambda: app.metric("tidings_provider_failing", provider="apns") == 1, "APNs does not count as failing")
            check(app.metric("tidings_provider_failing", provider="web_push") == 0)
            check(server.log().count("the provider takes no notifications") == 1, "the log does not tell it once")
        tap.case("a provider that cannot be reached delays no other one, and the log tells it once", away)


def main():
    os.environ.setdefault("TIDINGS_API_KEY", "")
    with tempfile.TemporaryDirectory(prefix="tidings-") as folder, Double(sys.argv[1:], folder) as double:
        tap = Tap(double.client)
        for part in (web_push, apns, fcm, huawei, documented_errors, dead_letters, slow, several):
            part(tap, double)
            double.plan(apns=[], fcm=[], web_push=[], oauth=[], huawei=[], huawei_oauth=[])
            # What a server sent that has ended is nobody's.
            while not double.told.empty():
                double.told.get()
    tap.end()


if __name__ == "__main__":
    main()
