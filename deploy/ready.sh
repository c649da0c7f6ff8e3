#!/bin/bash
# Whether the server in this container can do its work now: `/readyz` answers 200. Needs nothing but bash, so the image
# holds no HTTP client. The first argument is the port; 8080 without.
exec 3<> "/dev/tcp/127.0.0.1/${1:-8080}" || exit 1
printf 'GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&3
read -r -t 2 answer <&3
[[ $answer == "HTTP/1.1 200 "* ]]
