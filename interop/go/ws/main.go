// The WebSocket listener with github.com/coder/websocket.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/coder/websocket"
)

const (
	patience     = 2 * time.Minute
	bodyBytesMax = 64 * 1024
	window       = 64
)

type object = map[string]any

// session is a bound session: the entries that came, the newest cursor.
type session struct {
	socket  *websocket.Conn
	bound   object
	cursor  string
	entries []object
	refs    float64
}

func check(holds bool, why ...any) {
	if !holds {
		panic(fmt.Sprint(why...))
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), patience)
}

func connect() *session {
	ctx, cancel := within()
	defer cancel()
	socket, _, err := websocket.Dial(ctx, os.Getenv("TIDINGS_WS"), &websocket.DialOptions{CompressionMode: websocket.CompressionContextTakeover})
	if err != nil {
		panic(err)
	}
	socket.SetReadLimit(16 << 20)
	return &session{socket: socket}
}

func bind(token, device, cursor string) *session {
	s := connect()
	frame := object{"t": "bind", "token": token, "device_id": device}
	if cursor != "" {
		frame["cursor"] = cursor
	}
	s.tell(frame)
	s.bound = must(s.next())
	check(s.bound["t"] == "bound", s.bound)
	s.cursor = s.bound["cursor"].(string)
	return s
}

func (s *session) tell(frame object) {
	s.write(must(json.Marshal(frame)))
}

func (s *session) write(text []byte) {
	ctx, cancel := within()
	defer cancel()
	if err := s.socket.Write(ctx, websocket.MessageText, text); err != nil {
		panic(err)
	}
}

func (s *session) next() (object, error) {
	ctx, cancel := within()
	defer cancel()
	kind, text, err := s.socket.Read(ctx)
	if err != nil {
		return nil, err
	}
	check(kind == websocket.MessageText, "only text is sent")
	var frame object
	if err := json.Unmarshal(text, &frame); err != nil {
		return nil, err
	}
	if frame["t"] == "messages" {
		s.cursor = frame["cursor"].(string)
		for _, entry := range frame["entries"].([]any) {
			s.entries = append(s.entries, entry.(object))
		}
	}
	return frame, nil
}

// ask answers with the frame, or the result of a send, that has the request's ref.
func (s *session) ask(frame object) object {
	s.refs++
	frame["ref"] = s.refs
	s.tell(frame)
	for {
		answer := must(s.next())
		if answer["ref"] == s.refs {
			return answer
		}
		if answer["t"] == "sent" {
			for _, result := range answer["results"].([]any) {
				if result.(object)["ref"] == s.refs {
					return result.(object)
				}
			}
		}
	}
}

func waitAsTold(refusal object) {
	ms, told := refusal["retry_after_ms"].(float64)
	if !told {
		ms = 100
	}
	time.Sleep(time.Duration(ms) * time.Millisecond)
}

func (s *session) send(to string, body any) object {
	id := letters(16)
	for {
		answer := s.ask(object{"t": "send", "to": to, "client_msg_id": id, "body": body})
		if answer["t"] != "error" || answer["retry"] != true {
			return answer
		}
		waitAsTold(answer)
	}
}

func (s *session) have(count int) []object {
	for len(s.entries) < count {
		must(s.next())
	}
	check(len(s.entries) == count, len(s.entries), " entries came, ", count, " were sent")
	return s.entries
}

// sendAll sends frames, a window at a time; those that are refused for the moment again.
func (s *session) sendAll(frames []object) {
	for len(frames) > 0 {
		now := frames[:min(window, len(frames))]
		again := []object{}
		byRef := map[float64]object{}
		for _, frame := range now {
			byRef[float64(frame["ref"].(int))] = frame
			s.tell(frame)
		}
		var refusal object
		for len(byRef) > 0 {
			frame := must(s.next())
			switch frame["t"] {
			case "sent":
				for _, result := range frame["results"].([]any) {
					delete(byRef, result.(object)["ref"].(float64))
				}
			case "error":
				check(frame["retry"] == true, frame)
				refusal = frame
				again = append(again, byRef[frame["ref"].(float64)])
				delete(byRef, frame["ref"].(float64))
			}
		}
		if refusal != nil {
			waitAsTold(refusal)
		}
		frames = append(again, frames[len(now):]...)
	}
}

func min(a, b int) int {
	if a < b {
		return a
	}
	return b
}

func letters(length int) string {
	const alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	text := make([]byte, length)
	for i := range text {
		text[i] = alphabet[rand.Intn(len(alphabet))]
	}
	return string(text)
}

func checkLengths(ada, ben *session, to string) {
	frames, bodies := []object{}, map[string]string{}
	put := func(length int, body string) object {
		id := fmt.Sprint("l", length)
		bodies[id] = body
		return object{"t": "send", "ref": 1_000_000 + length, "to": to, "client_msg_id": id, "body": body}
	}
	for length := 0; length <= 300; length++ {
		frames = append(frames, put(length, letters(length)))
	}
	for length := 65_525; length < 65_545; length++ {
		empty := len(must(json.Marshal(put(length, ""))))
		frame := put(length, letters(length-empty))
		check(len(must(json.Marshal(frame))) == length, "the frame has its length")
		frames = append(frames, frame)
	}
	before := len(ben.entries)
	ada.sendAll(frames)
	for _, entry := range ben.have(before + len(frames))[before:] {
		id := entry["client_msg_id"].(string)
		check(entry["body"] == bodies[id], id, " came changed")
		delete(bodies, id)
	}
	check(len(bodies) == 0, "each came once")
}

func checkBodyLimit(ada, ben *session, to string) {
	whole := letters(bodyBytesMax - 2)
	before := len(ben.entries)
	receipt := ada.send(to, whole)
	check(receipt["seq"] != nil, receipt)
	check(ben.have(before + 1)[before]["body"] == whole, "64 KiB came changed")
	refused := ada.send(to, whole+"x")
	check(refused["code"] == "limit_exceeded" && strings.Contains(refused["message"].(string), "65536"), refused)
	check(ada.ask(object{"t": "ping"})["t"] == "pong", "the session goes on")
}

func checkPings(ada *session) {
	// A pong is seen while something reads.
	ctx, cancel := within()
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- ada.socket.Ping(ctx) }()
	for {
		select {
		case err := <-done:
			check(err == nil, err)
			return
		default:
			check(ada.ask(object{"t": "ping"})["t"] == "pong", "a pong")
		}
	}
}

func checkParts(ada, ben *session, to string) {
	text := []byte(fmt.Sprintf(`{"t":"send","ref":77,"to":%q,"body":"in parts: 😀"}`, to))
	before := len(ben.entries)
	ctx, cancel := within()
	defer cancel()
	writer := must(ada.socket.Writer(ctx, websocket.MessageText))
	for len(text) > 0 {
		part := text[:min(5, len(text))]
		must(writer.Write(part))
		text = text[len(part):]
	}
	if err := writer.Close(); err != nil {
		panic(err)
	}
	check(ben.have(before + 1)[before]["body"] == "in parts: 😀", "put together")
}

func checkConversations(ada *session) {
	ids := map[string]bool{}
	frame := object{"t": "conversations", "limit": 2}
	for {
		page := ada.ask(frame)
		check(page["t"] == "conversations", page)
		for _, conversation := range page["conversations"].([]any) {
			ids[conversation.(object)["id"].(string)] = true
		}
		if page["next"] == nil {
			break
		}
		frame = object{"t": "conversations", "limit": 2, "after": page["next"]}
	}
	check(len(ids) == 4, ids)
}

func checkResume(ada *session, to, token string) {
	ben := bind(token, "tablet", "")
	ada.send(to, object{"before": 1})
	ben.have(1)
	cursor := ben.cursor
	ben.socket.CloseNow()
	for n := 0; n < 3; n++ {
		ada.send(to, object{"missed": n})
	}
	again := bind(token, "tablet", cursor)
	check(again.bound["resume"].(object)["complete"] == true, again.bound)
	for n, entry := range again.have(3) {
		check(entry["body"].(object)["missed"] == float64(n), entry)
	}
	third := bind(token, "tablet", again.cursor)
	check(third.ask(object{"t": "ping"})["t"] == "pong" && len(third.entries) == 0, "what was handed over came again")
}

func checkBadCursor(token string) {
	s := connect()
	s.tell(object{"t": "bind", "token": token, "device_id": "watch", "cursor": "of.another.server"})
	refusal := must(s.next())
	check(refusal["code"] == "cursor_invalid" && refusal["retry"] == false, refusal)
	_, err := s.next()
	var end websocket.CloseError
	check(errors.As(err, &end) && end.Code == 4014 && end.Reason == "cursor_invalid", err)
}

func checkClose(token string) {
	for _, code := range []websocket.StatusCode{1000, 3999, 4999} {
		s := bind(token, "watch", "")
		err := s.socket.Close(code, "bye")
		check(err == nil, "the goodbye was not answered: ", err)
	}
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/coder/websocket" {
			return module.Version
		}
	}
	return "?"
}

func main() {
	name := os.Getenv("SUITE")
	fmt.Printf("TAP version 13\n# client: coder/websocket %s, %s\n", version(), runtime.Version())
	benID, cyID := name+"-ben", name+"-cy"
	ada, ben := bind(os.Getenv("TOKEN_ADA"), "phone", ""), bind(os.Getenv("TOKEN_BEN"), "phone", "")
	cy := os.Getenv("TOKEN_CY")
	count, failures := 0, 0
	try := func(title string, check func()) {
		count++
		defer func() {
			if why := recover(); why != nil {
				failures++
				fmt.Printf("not ok %d - %s\n# %s\n", count, title, strings.ReplaceAll(fmt.Sprint(why), "\n", "\n# "))
			} else {
				fmt.Printf("ok %d - %s\n", count, title)
			}
		}()
		check()
	}
	try("a message is acknowledged and comes to both, unchanged", func() {
		text := "grüße, 你好, 😀 \x00 \\ \""
		receipt := ada.send(benID, object{"text": text})
		hers, his := ada.have(1)[0], ben.have(1)[0]
		check(his["seq"] == receipt["seq"] && his["from"] == name+"-ada" && his["body"].(object)["text"] == text, his)
		check(string(must(json.Marshal(hers))) == string(must(json.Marshal(his))), hers)
	})
	try("every length from 0 to 300 and around 65,535 and 65,536", func() { checkLengths(ada, ben, benID) })
	try("a body of 64 KiB is taken, one byte more is refused", func() { checkBodyLimit(ada, ben, benID) })
	try("a ping of the protocol is answered", func() { checkPings(ada) })
	try("a message in parts is one", func() { checkParts(ada, ben, benID) })
	try("conversations come page by page", func() {
		ada.send(cyID, "so that there are two direct ones")
		checkConversations(ada)
	})
	try("after a cut what was missed comes, once", func() { checkResume(ada, benID, os.Getenv("TOKEN_BEN")) })
	try("a cursor of another server is refused by a code of its own", func() { checkBadCursor(cy) })
	try("a goodbye is answered with its code", func() { checkClose(cy) })
	fmt.Printf("1..%d\n", count)
	if failures > 0 {
		os.Exit(1)
	}
}
