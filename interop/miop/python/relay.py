"""A relay that holds its port while what is behind it stops, starts and moves: what a balancer does, and a bad network."""

import select
import socket
import threading


class Relay:
    """`with Relay("127.0.0.1:8081") as relay:` listens at `relay.address`; `target` may change, `None` refuses."""

    def __init__(self, target=None, header=None):
        self.target, self.header = target, header
        self.pairs, self.lock = [], threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.carry, args=(near,), daemon=True).start()

    def carry(self, near):
        target = self.target
        try:
            host, port = target.rsplit(":", 1)
            far = socket.create_connection((host, int(port)), 30)
        except (OSError, AttributeError):
            near.close()
            return
        with self.lock:
            self.pairs.append((near, far))
        try:
            if self.header:
                far.sendall(self.header)
            open_ways = {near: far, far: near}
            while open_ways:
                for sock in select.select(list(open_ways), [], [])[0]:
                    data = sock.recv(65536)
                    if data:
                        open_ways[sock].sendall(data)
                    else:
                        open_ways.pop(sock).shutdown(socket.SHUT_WR)
        except (OSError, ValueError):
            pass
        near.close()
        far.close()

    def cut(self):
        """Ends every connection that goes through here."""
        with self.lock:
            pairs, self.pairs = self.pairs, []
        for pair in pairs:
            for sock in pair:
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()
        self.cut()
