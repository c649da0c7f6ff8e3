// A receiver of webhooks on net/http. What it prints, a line each, is what ../drive.py reads.
package main

import (
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"sync"
	"time"
)

var (
	mutex sync.Mutex
	plan  []int // statuses that the next good calls are answered with
)

func tell(what map[string]any) {
	line, err := json.Marshal(what)
	if err != nil {
		panic(err)
	}
	os.Stdout.Write(append(line, '\n'))
}

func receive(answer http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return
	}
	mutex.Lock()
	defer mutex.Unlock()
	if request.URL.Path == "/plan" {
		plan = nil
		if json.Unmarshal(body, &plan) != nil {
			answer.WriteHeader(http.StatusBadRequest)
			return
		}
		answer.WriteHeader(http.StatusNoContent)
		return
	}
	if !verify(os.Getenv("WEBHOOK_SECRET"), request.Header, body, time.Now(), 5*time.Minute) {
		tell(map[string]any{"status": 401, "timestamp": request.Header.Get("Tidings-Timestamp")})
		answer.WriteHeader(http.StatusUnauthorized)
		return
	}
	status := 200
	if len(plan) > 0 {
		status, plan = plan[0], plan[1:]
	}
	var call struct {
		Events json.RawMessage `json:"events"`
	}
	if json.Unmarshal(body, &call) != nil {
		status = 400
	}
	tell(map[string]any{
		"status":    status,
		"timestamp": request.Header.Get("Tidings-Timestamp"),
		"signature": request.Header.Get("Tidings-Signature"),
		"type":      request.Header.Get("Content-Type"),
		"body":      hex.EncodeToString(body),
		"events":    call.Events,
	})
	if status >= 300 && status < 400 {
		answer.Header().Set("Location", "/elsewhere")
	}
	answer.WriteHeader(status)
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	tell(map[string]any{"client": runtime.Version() + ", crypto/hmac", "port": listener.Addr().(*net.TCPAddr).Port})
	panic(http.Serve(listener, http.HandlerFunc(receive)))
}
