// Go's net/http, as an app's server uses it.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"
)

var (
	base     = os.Getenv("TIDINGS_URL")
	key      = os.Getenv("TIDINGS_API_KEY")
	count    int
	failures int
)

func check(name string, run func() error) {
	count++
	if err := run(); err != nil {
		failures++
		fmt.Printf("not ok %d - %s\n# %s\n", count, name, strings.ReplaceAll(err.Error(), "\n", "\n# "))
		return
	}
	fmt.Printf("ok %d - %s\n", count, name)
}

type answer struct {
	status int
	header http.Header
	body   []byte
	reused bool
}

func call(client *http.Client, method, path string, body io.Reader, change func(*http.Request)) (answer, error) {
	var got answer
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { got.reused = info.Reused }}
	ctx, cancel := context.WithTimeout(httptrace.WithClientTrace(context.Background(), trace), 120*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, base+path, body)
	if err != nil {
		return got, err
	}
	request.Header.Set("Authorization", "Bearer "+key)
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if change != nil {
		change(request)
	}
	response, err := client.Do(request)
	if err != nil {
		return got, err
	}
	defer response.Body.Close()
	got.body, err = io.ReadAll(response.Body)
	got.status, got.header = response.StatusCode, response.Header
	return got, err
}

func message(id, body string) string {
	return fmt.Sprintf(`{"from":"go-ada","to":"go-ben","client_msg_id":%q,"body":%s}`, id, body)
}

type receipt struct {
	Seq       uint64 `json:"seq"`
	Duplicate bool   `json:"duplicate"`
}

func send(client *http.Client, id string, change func(*http.Request)) (receipt, answer, error) {
	var got receipt
	answer, err := call(client, "POST", "/v1/messages", strings.NewReader(message(id, "1")), change)
	if err == nil && answer.status != 200 {
		err = fmt.Errorf("%d: %s", answer.status, answer.body)
	}
	if err == nil {
		err = json.Unmarshal(answer.body, &got)
	}
	return got, answer, err
}

func expect(client *http.Client, method, path, body string, status int, code string) error {
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	got, err := call(client, method, path, reader, nil)
	if err != nil {
		return err
	}
	if got.status != status {
		return fmt.Errorf("%s %s: %d: %s", method, path, got.status, got.body)
	}
	if code == "" {
		return nil
	}
	var problem struct {
		Code, Detail string
		Status       int
	}
	if err := json.Unmarshal(got.body, &problem); err != nil {
		return err
	}
	if got.header.Get("Content-Type") != "application/problem+json" || problem.Code != code || problem.Status != status || problem.Detail == "" {
		return fmt.Errorf("%v %s", got.header, got.body)
	}
	return nil
}

func fresh(change func(*http.Transport)) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if change != nil {
		change(transport)
	}
	return &http.Client{Transport: transport}
}

type entry struct {
	Seq  uint64          `json:"seq"`
	Kind string          `json:"kind"`
	Body json.RawMessage `json:"body"`
}

// history reads a conversation from its beginning, page by page.
func history(client *http.Client, conversation string, limit int) ([]entry, error) {
	var all []entry
	for next := uint64(1); ; {
		got, err := call(client, "GET", fmt.Sprintf("/v1/conversations/%s/messages?from_seq=%d&limit=%d", conversation, next, limit), nil, nil)
		if err != nil || got.status != 200 {
			return nil, fmt.Errorf("%d %s %v", got.status, got.body, err)
		}
		var page struct{ Entries []entry }
		if err := json.Unmarshal(got.body, &page); err != nil {
			return nil, err
		}
		if len(page.Entries) == 0 {
			return all, nil
		}
		for _, entry := range page.Entries {
			if entry.Seq != next {
				return nil, fmt.Errorf("seq %d where %d was due", entry.Seq, next)
			}
			next++
		}
		all = append(all, page.Entries...)
	}
}

func main() {
	fmt.Printf("TAP version 13\n# client: net/http of %s\n", runtime.Version())
	client := fresh(nil)

	check("users are made", func() error {
		return expect(client, "PUT", "/v1/users", `{"users":[{"id":"go-ada"},{"id":"go-ben"},{"id":"go-jörg+ß%"}]}`, 200, "")
	})

	check("50 sends on one connection, which outlives refusals", func() error {
		client := fresh(nil)
		for number := 0; number < 50; number++ {
			_, got, err := send(client, fmt.Sprint("kept-", number), nil)
			if err != nil {
				return err
			}
			if number > 0 && !got.reused {
				return fmt.Errorf("send %d came on a new connection", number)
			}
			if err := expect(client, "GET", "/v1/nowhere", "", 404, "not_found"); err != nil {
				return err
			}
		}
		return nil
	})

	check("200 connections, a send on each", func() error {
		client := fresh(func(transport *http.Transport) { transport.DisableKeepAlives = true })
		for number := 0; number < 200; number++ {
			_, got, err := send(client, fmt.Sprint("single-", number), nil)
			if err != nil || got.reused {
				return fmt.Errorf("%d: reused %v, %v", number, got.reused, err)
			}
		}
		return nil
	})

	check("300 sends on 100 connections at once, and their retries", func() error {
		client := fresh(func(transport *http.Transport) { transport.MaxConnsPerHost = 100 })
		if err := expect(client, "POST", "/v1/conversations", `{"id":"go-crowd","kind":"group","owner":"go-ada"}`, 201, ""); err != nil {
			return err
		}
		var seqs [600]uint64
		errors := make(chan error, len(seqs))
		for round := 0; round < 2; round++ {
			var wait sync.WaitGroup
			for number := 0; number < 300; number++ {
				wait.Add(1)
				go func() {
					defer wait.Done()
					body := fmt.Sprintf(`{"conversation":"go-crowd","from":"go-ada","client_msg_id":"m%d","body":%d}`, number, number)
					got, err := call(client, "POST", "/v1/messages", strings.NewReader(body), nil)
					var result receipt
					if err == nil {
						err = json.Unmarshal(got.body, &result)
					}
					if err == nil && (got.status != 200 || result.Duplicate != (round == 1)) {
						err = fmt.Errorf("%d: %s", got.status, got.body)
					}
					if err != nil {
						errors <- err
					}
					seqs[round*300+number] = result.Seq
				}()
			}
			wait.Wait()
		}
		select {
		case err := <-errors:
			return err
		default:
		}
		for number := 0; number < 300; number++ {
			if seqs[number] != seqs[300+number] {
				return fmt.Errorf("m%d was %d, and its retry %d", number, seqs[number], seqs[300+number])
			}
		}
		all, err := history(client, "go-crowd", 33)
		if err != nil {
			return err
		}
		bodies := map[string]bool{}
		for _, entry := range all {
			if entry.Kind == "message" {
				bodies[string(entry.Body)] = true
			}
		}
		if len(bodies) != 300 {
			return fmt.Errorf("%d messages of 300", len(bodies))
		}
		return nil
	})

	check("a chunked body", func() error {
		text := message("chunked", `"`+strings.Repeat("ø", 20_000)+`"`)
		// A reader whose length Go cannot see.
		got, err := call(client, "POST", "/v1/messages", io.MultiReader(strings.NewReader(text[:1_001]), strings.NewReader(text[1_001:])), nil)
		if err != nil || got.status != 200 {
			return fmt.Errorf("%d: %s %v", got.status, got.body, err)
		}
		var sent receipt
		if err := json.Unmarshal(got.body, &sent); err != nil {
			return err
		}
		page, err := call(client, "GET", fmt.Sprintf("/v1/conversations/go-ada~go-ben/messages?from_seq=%d&limit=1", sent.Seq), nil, nil)
		if err != nil || !bytes.Contains(page.body, []byte(strings.Repeat("ø", 20_000))) {
			return fmt.Errorf("%.200s %v", page.body, err)
		}
		return nil
	})

	check("Expect: 100-continue, and refused before the body", func() error {
		client := fresh(func(transport *http.Transport) { transport.ExpectContinueTimeout = 120 * time.Second })
		if _, _, err := send(client, "expect", func(request *http.Request) { request.Header.Set("Expect", "100-continue") }); err != nil {
			return err
		}
		// Who is told that the connection ends need not send the body.
		taken := &counting{left: 3_000_000}
		got, err := call(client, "POST", "/v1/messages", taken, func(request *http.Request) {
			request.Header.Set("Expect", "100-continue")
			request.Header.Set("Authorization", "Bearer nobody")
		})
		if err != nil || got.status != 401 || taken.read != 0 {
			return fmt.Errorf("%d: %s %v; %d bytes were taken", got.status, got.body, err, taken.read)
		}
		return nil
	})

	check("a send whose answer nobody waited for is retried", func() error {
		for number := 0; number < 20; number++ {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(number)*100*time.Microsecond)
			_, _, _ = send(client, fmt.Sprint("cut-", number), func(request *http.Request) { *request = *request.WithContext(ctx) })
			cancel()
		}
		seen := map[uint64]bool{}
		for number := 0; number < 20; number++ {
			first, _, err := send(client, fmt.Sprint("cut-", number), nil)
			if err != nil {
				return err
			}
			again, _, err := send(client, fmt.Sprint("cut-", number), nil)
			if err != nil || again.Seq != first.Seq || !again.Duplicate || seen[first.Seq] {
				return fmt.Errorf("%v then %v, %v", first, again, err)
			}
			seen[first.Seq] = true
		}
		return nil
	})

	check("21 requests in one write, read by net/http's parser", func() error {
		at, err := url.Parse(base)
		if err != nil {
			return err
		}
		connection, err := net.Dial("tcp", at.Host)
		if err != nil {
			return err
		}
		defer connection.Close()
		_ = connection.SetDeadline(time.Now().Add(120 * time.Second))
		var all bytes.Buffer
		var requests []*http.Request
		for number := 0; number < 21; number++ {
			method, path, body := "GET", "/v1/users/go-ada", ""
			if number%2 == 1 {
				method, path, body = "POST", "/v1/messages", message(fmt.Sprint("pipe-", number), "1")
			}
			request, err := http.NewRequest(method, base+path, strings.NewReader(body))
			if err != nil {
				return err
			}
			request.Header.Set("Authorization", "Bearer "+key)
			request.Header.Set("Content-Type", "application/json")
			if err := request.Write(&all); err != nil {
				return err
			}
			requests = append(requests, request)
		}
		if _, err := connection.Write(all.Bytes()); err != nil {
			return err
		}
		reader := bufio.NewReader(connection)
		for number, request := range requests {
			response, err := http.ReadResponse(reader, request)
			if err != nil {
				return fmt.Errorf("answer %d: %w", number, err)
			}
			body, err := io.ReadAll(response.Body)
			if err != nil || response.StatusCode != 200 {
				return fmt.Errorf("answer %d: %d %s %v", number, response.StatusCode, body, err)
			}
		}
		return nil
	})

	check("gzip, which Go asks for by itself, may be left", func() error {
		return expect(client, "GET", "/v1/users/go-ada", "", 200, "")
	})

	check("errors are problems", func() error {
		for _, one := range []struct {
			method, path, body string
			status             int
			code               string
		}{
			{"GET", "/v1/users/go-nobody", "", 404, "not_found"},
			{"POST", "/v1/messages", "{", 400, "malformed"},
			{"POST", "/v1/messages", strings.Replace(message("typed", "1"), `"go-ben"`, "7", 1), 422, "invalid_field"},
			{"DELETE", "/v1/messages", "", 405, "method_not_allowed"},
			{"OPTIONS", "/v1/messages", "", 405, "method_not_allowed"},
			{"POST", "/v1/messages", message("large", `"`+strings.Repeat("z", 8_000_000)+`"`), 413, "limit_exceeded"},
		} {
			if err := expect(client, one.method, one.path, one.body, one.status, one.code); err != nil {
				return fmt.Errorf("%s %s: %w", one.method, one.path, err)
			}
		}
		return nil
	})

	check("HEAD has the length and no body", func() error {
		full, err := call(client, "GET", "/v1/users/go-ada", nil, nil)
		if err != nil {
			return err
		}
		head, err := call(client, "HEAD", "/v1/users/go-ada", nil, nil)
		if err != nil || head.status != 200 || head.header.Get("Content-Length") != fmt.Sprint(len(full.body)) {
			return fmt.Errorf("%d %v %v", head.status, head.header, err)
		}
		return nil
	})

	check("an id beyond ASCII in a path", func() error {
		return expect(client, "GET", "/v1/users/"+url.PathEscape("go-jörg+ß%"), "", 200, "")
	})

	fmt.Printf("1..%d\n", count)
	if failures > 0 {
		os.Exit(1)
	}
}

// counting is a body that tells how much of it was taken.
type counting struct{ left, read int }

func (body *counting) Read(into []byte) (int, error) {
	if body.left == 0 {
		return 0, io.EOF
	}
	size := min(len(into), body.left)
	for at := range into[:size] {
		into[at] = ' '
	}
	body.left -= size
	body.read += size
	return size, nil
}
