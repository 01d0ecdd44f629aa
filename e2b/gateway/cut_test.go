package gateway_test

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"testing"

	"github.com/bouvet-run/bouvet/internal/daemon"
)

// endless says something until nobody listens any more.
func endless(w http.ResponseWriter, _ *http.Request) {
	for {
		if _, err := io.WriteString(w, "and so on\n"); err != nil {
			return
		}
	}
}

// The end of a sandbox ends its responses, those whose client or handler does nothing
// included, and those of no other.
func TestEndCutsResponses(t *testing.T) {
	ends := map[string]func(h *house, id daemon.ID) error{
		"kill":  func(h *house, id daemon.ID) error { return h.Kill(h.t.Context(), alice, id) },
		"pause": func(h *house, id daemon.ID) error { return h.Pause(h.t.Context(), alice, id, true) },
	}
	for name, end := range ends {
		for _, http2 := range []bool{false, true} {
			version := map[bool]string{false: " HTTP/1.1", true: " HTTP/2"}[http2]
			t.Run(name+version, func(t *testing.T) {
				h := newHouse(t, http2)
				started := make(chan struct{})
				port := h.guest(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/endless" {
						endless(w, r)
						return
					}
					_ = http.NewResponseController(w).EnableFullDuplex()
					_, _ = io.WriteString(w, "hello\n")
					_ = http.NewResponseController(w).Flush()
					if r.URL.Path == "/body" {
						started <- struct{}{}
						_, _ = io.Copy(io.Discard, r.Body)
					}
					<-r.Context().Done()
				})
				sb, other := h.create(daemon.CreateOptions{}), h.create(daemon.CreateOptions{})
				open := func(id daemon.ID, port int, path string) *http.Response {
					return h.do(h.request(http.MethodGet, id, port, path, nil))
				}
				cut := []*http.Response{
					open(sb.ID, port, "/"), open(sb.ID, port, "/endless"), open(sb.ID, 49983, "/until-ended"),
				}
				body, pw := io.Pipe() // whose end never comes
				defer func() { _ = pw.Close() }()
				uploading := make(chan *http.Response, 1)
				upload := h.request(http.MethodPost, sb.ID, port, "/body", body)
				go func() { res, _ := h.http.Do(upload); uploading <- res }()
				<-started
				cut = append(cut, <-uploading)
				silent := make(chan *http.Response, 1)
				waits := h.request(http.MethodGet, sb.ID, 49983, "/silent", nil)
				wrote := make(chan struct{})
				waits = waits.WithContext(httptrace.WithClientTrace(waits.Context(), &httptrace.ClientTrace{
					WroteRequest: func(httptrace.WroteRequestInfo) { close(wrote) },
				}))
				go func() { res, _ := h.http.Do(waits); silent <- res }()
				<-wrote
				stays := bufio.NewReader(open(other.ID, port, "/").Body)

				if err := end(h, sb.ID); err != nil {
					t.Fatal(err)
				}
				for i, res := range cut {
					if n, err := io.Copy(io.Discard, res.Body); err == nil {
						t.Errorf("response %d of %d bytes was taken for whole", i, n)
					}
				}
				res := <-silent
				if res == nil {
					t.Fatal("the one that had not begun has no answer")
				}
				text, err := io.ReadAll(res.Body)
				if err != nil {
					t.Fatal(err)
				}
				_ = res.Body.Close()
				refused(t, res.StatusCode, string(text), 502, gone)
				if line, err := stays.ReadString('\n'); err != nil || line != "hello\n" {
					t.Errorf("another sandbox: %q, %v", line, err)
				}
				if status, _ := h.get(other.ID, 49983, "/"); status != 200 {
					t.Errorf("another sandbox: %d", status)
				}
			})
		}
	}
}

func TestEndCutsUpgradedConnections(t *testing.T) {
	h := newHouse(t, false)
	echo := h.guest(echoUpgraded(t))
	flood := h.guest(func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = c.Close() }()
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		for err == nil {
			_, err = c.Write(make([]byte, 1<<16))
		}
	})
	sb := h.create(daemon.CreateOptions{})
	_, quiet := h.upgrade(sb.ID, echo)
	h.upgrade(sb.ID, flood) // and the client reads nothing of it
	if err := h.Kill(t.Context(), alice, sb.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := quiet.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
	// The ledger sees whether the other has ended.
}

// A connection that served a sandbox serves another after that one's end.
func TestConnectionsOutliveSandboxes(t *testing.T) {
	h := newHouse(t, false)
	first, second := h.create(daemon.CreateOptions{}), h.create(daemon.CreateOptions{})
	h.http.Transport.(*http.Transport).MaxConnsPerHost = 1
	if status, _ := h.get(first.ID, 49983, "/"); status != 200 {
		t.Fatalf("got %d", status)
	}
	if err := h.Kill(t.Context(), alice, first.ID); err != nil {
		t.Fatal(err)
	}
	for _, id := range []daemon.ID{first.ID, second.ID} {
		r := h.request(http.MethodGet, id, 49983, "/", nil)
		reused := false
		r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }}))
		if h.answer(r); !reused {
			t.Errorf("%s: a new connection was needed", id)
		}
	}
}
