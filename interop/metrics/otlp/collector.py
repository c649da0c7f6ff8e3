"""Collectors of OTLP over HTTP: one that decodes what it gets, and some that are of no use."""

import contextlib
import http.server
import socket
import threading

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse


class Collector:
    """`with Collector() as collector:` keeps every request decoded in `requests`, in the order in which they came."""

    def __init__(self, status=200, rejects=0, delay=0):
        self.requests, self.wrong = [], []
        self._ends = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                if (self.path, self.headers["content-type"]) != ("/v1/metrics", "application/x-protobuf"):
                    outer.wrong.append(f"{self.path} {self.headers['content-type']}")
                outer.requests.append(ExportMetricsServiceRequest.FromString(body))
                outer._ends.wait(delay)
                answer = ExportMetricsServiceResponse()
                if rejects:
                    answer.partial_success.rejected_data_points = rejects
                    answer.partial_success.error_message = "no such tenant"
                body = answer.SerializeToString()
                # A client that waits no longer has closed the connection.
                with contextlib.suppress(ConnectionError):
                    self.send_response(status)
                    self.send_header("content-type", "application/x-protobuf")
                    self.send_header("content-length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._ends.set()
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def away():
    """A port that is held, and at which nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


@contextlib.contextmanager
def hanging():
    """Connections are accepted, and no request is ever read."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
