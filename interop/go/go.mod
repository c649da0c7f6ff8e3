module tidings/interop

go 1.19

require (
	github.com/coder/websocket v1.8.12
	github.com/golang-jwt/jwt/v5 v5.2.1
)

