package gateway_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"strings"
	"testing"

	"github.com/bouvet-run/bouvet/e2b/gateway"
	"github.com/bouvet-run/bouvet/internal/daemon"
)

// echoRequest answers with what the server saw.
func echoRequest(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	_, _ = fmt.Fprintf(w, "%s %s\nHost: %s\n", r.Method, r.RequestURI, r.Host)
	_ = r.Header.Write(w)
	_, _ = fmt.Fprintf(w, "\n%s", body)
}

func TestForward(t *testing.T) {
	h := newHouse(t, false)
	port := h.guest(echoRequest)
	sb := h.create(daemon.CreateOptions{Secure: true})
	key := "e2b_" + strings.Repeat("0a", 20)

	t.Run("what the server sees (T52)", func(t *testing.T) {
		r := h.request(http.MethodPut, "", 0, "/", strings.NewReader("body"))
		r.Host = fmt.Sprintf("%d-%s.sbx.test", port, sb.ID)
		r.URL.Opaque = "/a/../b%2fc//d?x=1;y=2&z"
		r.Header = http.Header{
			"E2b-Sandbox-Id": {string(sb.ID)}, "E2b-Sandbox-Port": {strconv.Itoa(port)}, "E2b-Traffic-Access-Token": {"t"},
			"X-Access-Token": {sb.AccessToken}, "X-Api-Key": {key}, "Authorization": {"Bearer " + key},
			"X-Forwarded-For": {"1.2.3.4"}, "Forwarded": {"for=1.2.3.4"}, "Connection": {"X-Hop"}, "X-Hop": {"1"}, "Keep-Alive": {"1"},
			"X-Own": {"1", "2"}, "User-Agent": {"test"}, "Accept-Encoding": {"br"},
		}
		_, got := h.answer(r)
		want := fmt.Sprintf("PUT /a/../b%%2fc//d?x=1;y=2&z\nHost: %s\nAccept-Encoding: br\r\nContent-Length: 4\r\nUser-Agent: test\r\n"+
			"X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Host: %s\r\nX-Forwarded-Proto: http\r\nX-Own: 1\r\nX-Own: 2\r\n\nbody", r.Host, r.Host)
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	t.Run("secrets that are not ours", func(t *testing.T) {
		r := h.request(http.MethodGet, sb.ID, port, "/", nil)
		for name, v := range map[string]string{"X-Access-Token": "own", "X-Api-Key": "sk-own", "Authorization": "Bearer own"} {
			r.Header.Set(name, v)
		}
		_, got := h.answer(r)
		for _, want := range []string{"X-Access-Token: own\r\n", "X-Api-Key: sk-own\r\n", "Authorization: Bearer own\r\n"} {
			if !strings.Contains(got, want) {
				t.Errorf("%q is not in %q", want, got)
			}
		}
	})
	t.Run("one connection serves many", func(t *testing.T) {
		for range 3 {
			if status, _ := h.get(sb.ID, port, "/"); status != 200 {
				t.Errorf("got %d", status)
			}
		}
	})
	t.Run("closed port", func(t *testing.T) {
		closed := httptest.NewServer(nil)
		port := portOf(t, closed.Listener.Addr())
		closed.Close()
		status, body := h.get(sb.ID, port, "/")
		refused(t, status, body, 502, "The sandbox is running but port is not open")
		if want := `"port":` + strconv.Itoa(port); !strings.Contains(body, want) || !strings.Contains(body, `"sandboxId":"`+string(sb.ID)+`"`) {
			t.Errorf("got %s", body)
		}
	})
	t.Run("CONNECT", func(t *testing.T) {
		r := h.request(http.MethodConnect, sb.ID, port, "/", nil)
		status, body := h.answer(r)
		refused(t, status, body, 405, "CONNECT is not a method of servers in sandboxes")
	})
	t.Run("HEAD", func(t *testing.T) {
		if res := h.do(h.request(http.MethodHead, sb.ID, port, "/", nil)); res.StatusCode != 200 || res.ContentLength == 0 {
			t.Errorf("got %d of %d bytes", res.StatusCode, res.ContentLength)
		}
	})
}

// T43: a redirect is the client's to follow, and not ours.
func TestRedirectsArePassedOn(t *testing.T) {
	h := newHouse(t, false)
	port := h.guest(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://127.0.0.1:1/secret", http.StatusTemporaryRedirect)
	})
	sb := h.create(daemon.CreateOptions{})
	res := h.do(h.request(http.MethodGet, sb.ID, port, "/", nil))
	if got := res.Header.Get("Location"); res.StatusCode != 307 || got != "http://127.0.0.1:1/secret" {
		t.Errorf("got %d %q", res.StatusCode, got)
	}
}

func TestMaskRequestHost(t *testing.T) {
	h := newHouse(t, false)
	raw := make(chan string, 1)
	port := h.rawGuest(func(c net.Conn) {
		r := textproto.NewReader(bufio.NewReader(c))
		_, _ = r.ReadLine()
		line, _ := r.ReadLine()
		raw <- line
		_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
	})
	sb := h.create(daemon.CreateOptions{Network: daemon.Network{MaskRequestHost: "localhost:${PORT}"}})
	if status, body := h.get(sb.ID, port, "/"); status != 204 {
		t.Fatalf("got %d %s", status, body)
	}
	if got, want := <-raw, fmt.Sprintf("Host: localhost:%d", port); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTrafficToken(t *testing.T) {
	h := newHouse(t, false)
	port := h.guest(echoRequest)
	no := false
	sb := h.create(daemon.CreateOptions{Secure: true, Network: daemon.Network{AllowPublicTraffic: &no}})
	if sb.TrafficToken == "" {
		t.Fatal("it has no token")
	}
	for _, tt := range []struct {
		tokens []string
		ok     bool
	}{
		{nil, false},
		{[]string{""}, false},
		{[]string{sb.AccessToken}, false},
		{[]string{sb.TrafficToken + "x"}, false},
		{[]string{sb.TrafficToken, "x"}, false},
		{[]string{sb.TrafficToken}, true},
	} {
		r := h.request(http.MethodGet, sb.ID, port, "/?e2b-traffic-access-token="+sb.TrafficToken, nil)
		r.Header["E2b-Traffic-Access-Token"] = tt.tokens
		status, body := h.answer(r)
		if !tt.ok {
			refused(t, status, body, 403, "The traffic access token is missing or wrong")
		} else if status != 200 || strings.Contains(body, "Traffic-Access-Token: ") {
			t.Errorf("got %d %s", status, body)
		}
	}
	if status, _ := h.get(sb.ID, 49983, "/health"); status != 200 {
		t.Errorf("port 49983: got %d", status)
	}
}

func TestPausedSandboxes(t *testing.T) {
	h := newHouse(t, false)
	port := h.guest(echoRequest)
	sleeper := h.create(daemon.CreateOptions{})
	light := h.create(daemon.CreateOptions{AutoResume: true, OnTimeout: daemon.TimeoutPauses, PauseMemory: true})
	for _, sb := range []daemon.Sandbox{sleeper, light} {
		if status, _ := h.get(sb.ID, port, "/"); status != 200 {
			t.Fatalf("got %d", status)
		}
		if err := h.Pause(t.Context(), alice, sb.ID, true); err != nil {
			t.Fatal(err)
		}
	}
	status, body := h.get(sleeper.ID, port, "/")
	refused(t, status, body, 502, gone)
	if status, body := h.get(light.ID, port, "/"); status != 200 {
		t.Errorf("the one that traffic wakes: got %d %s", status, body)
	}
	if _, _, err := h.Connect(t.Context(), alice, sleeper.ID, 0, true); err != nil {
		t.Fatal(err)
	}
	if status, body := h.get(sleeper.ID, port, "/"); status != 200 {
		t.Errorf("after it was resumed: got %d %s", status, body)
	}
	if err := h.Kill(t.Context(), alice, sleeper.ID); err != nil {
		t.Fatal(err)
	}
	status, body = h.get(sleeper.ID, port, "/")
	refused(t, status, body, 502, gone)
}

// A server that got on before the limit was reached is none of the next sandbox's.
func TestLimit(t *testing.T) {
	h := newHouse(t, false, func(o *gateway.Options) { o.PerSandbox = 3 })
	entered := make(chan struct{})
	port := h.guest(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(200)
		_ = http.NewResponseController(w).Flush()
		entered <- struct{}{}
		<-r.Context().Done()
	})
	sb, other := h.create(daemon.CreateOptions{}), h.create(daemon.CreateOptions{})
	var held []*http.Response
	for range 3 {
		r := h.request(http.MethodGet, sb.ID, port, "/", nil)
		res := make(chan *http.Response)
		go func() { a, _ := h.http.Do(r); res <- a }()
		<-entered
		held = append(held, <-res)
	}
	status, body := h.get(sb.ID, 49983, "/")
	refused(t, status, body, 429, "There are too many connections to the sandbox")
	if status, _ := h.get(other.ID, 49983, "/"); status != 200 {
		t.Errorf("another sandbox: got %d", status)
	}
	for _, res := range held {
		_ = res.Body.Close()
	}
	until(t, "there is room again", func() bool { status, _ := h.get(sb.ID, 49983, "/"); return status == 200 })
}

func TestTrailersAndInformation(t *testing.T) {
	h := newHouse(t, false)
	port := h.guest(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Trailer", "X-Sum")
		n, _ := io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "ok")
		w.Header().Set("X-Sum", fmt.Sprint(n, r.Trailer.Get("X-Client")))
	})
	sb := h.create(daemon.CreateOptions{})
	r := h.request(http.MethodPost, sb.ID, port, "/", io.MultiReader(strings.NewReader("some bytes")))
	r.Header.Set("Te", "trailers")
	r.Trailer = http.Header{"X-Client": {"!"}}
	var hints []int
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
		hints = append(hints, code)
		return nil
	}}))
	res := h.do(r)
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		t.Fatal(err)
	}
	if got := res.Trailer.Get("X-Sum"); got != "10!" || len(hints) != 1 || hints[0] != 103 {
		t.Errorf("trailer %q, hints %v", got, hints)
	}
}

// The server decides whether it wants a body, before any of that is sent.
func TestExpectContinue(t *testing.T) {
	h := newHouse(t, false)
	port := h.guest(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			w.WriteHeader(http.StatusExpectationFailed)
			return
		}
		echoRequest(w, r)
	})
	sb := h.create(daemon.CreateOptions{})
	for path, want := range map[string]string{"/no": "HTTP/1.1 417 Expectation Failed", "/yes": "HTTP/1.1 100 Continue"} {
		c, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: %d-%s.sbx.test\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n", path, port, sb.ID)
		if err != nil {
			t.Fatal(err)
		}
		br := bufio.NewReader(c)
		line, err := textproto.NewReader(br).ReadLine()
		if err != nil || line != want {
			t.Errorf("%s: got %q, %v, want %q", path, line, err, want)
		}
		if path == "/yes" {
			_, _ = br.ReadString('\n')
			_, _ = io.WriteString(c, "12345")
			res, err := http.ReadResponse(br, nil)
			if err != nil {
				t.Fatal(err)
			}
			if body, err := io.ReadAll(res.Body); err != nil || !strings.HasSuffix(string(body), "\n12345") {
				t.Errorf("got %q, %v", body, err)
			}
		}
		_ = c.Close()
	}
}

// What a server says is hostile: it is answered with an error, or breaks off, and never
// becomes more than there was.
func TestHostileServers(t *testing.T) {
	tests := []struct {
		name, says string
		endless    string
		status     int // 0 means that the answer breaks off
	}{
		{name: "not HTTP", says: "SSH-2.0-OpenSSH_9.2\r\n", status: 502},
		{name: "nothing", status: 502},
		{name: "endless header", says: "HTTP/1.1 200 OK\r\n", endless: "X-A: " + strings.Repeat("a", 1000) + "\r\n", status: 502},
		{name: "endless line", says: "HTTP/1.1 200 OK\r\nX-A: ", endless: strings.Repeat("a", 1000), status: 502},
		{name: "endless status", endless: strings.Repeat("a", 1000), status: 502},
		{name: "two lengths", says: "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", status: 502},
		{name: "negative length", says: "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nab", status: 502},
		{name: "short body", says: "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nab"},
		{name: "broken chunk", says: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n"},
		{name: "missing chunk", says: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n"},
		{name: "protocol that nobody asked for", says: "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", status: 502},
	}
	h := newHouse(t, false)
	sb := h.create(daemon.CreateOptions{})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			port := h.rawGuest(func(c net.Conn) {
				if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
					return
				}
				_, err := io.WriteString(c, tt.says)
				for tt.endless != "" && err == nil {
					_, err = io.WriteString(c, tt.endless)
				}
			})
			res, err := h.http.Do(h.request(http.MethodPost, sb.ID, port, "/", strings.NewReader("x")))
			if err != nil {
				if tt.status != 0 {
					t.Fatal(err)
				}
				return // not even the header of the answer went out
			}
			body, err := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if tt.status == 0 {
				if !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("got %d %q, %v: it was taken for the whole", res.StatusCode, body, err)
				}
				return
			}
			refused(t, res.StatusCode, string(body), tt.status, "The server on this port of the sandbox did not answer as HTTP servers do")
		})
	}
}

// Smuggling needs two that read a request differently: what is not one is no request.
func TestAmbiguousRequestsAreRefused(t *testing.T) {
	h := newHouse(t, false)
	port := h.guest(echoRequest)
	sb := h.create(daemon.CreateOptions{})
	host := fmt.Sprintf("Host: %d-%s.sbx.test\r\n", port, sb.ID)
	for name, head := range map[string]string{
		"two lengths":      host + "Content-Length: 1\r\nContent-Length: 2\r\n",
		"length and chunk": host + "Transfer-Encoding: chunked, identity\r\n",
		"two hosts":        host + "Host: 127.0.0.1\r\n",
		"space in name":    host + "Content-Length : 1\r\n",
		"user in host":     "Host: a@" + strings.TrimPrefix(host, "Host: "),
	} {
		var d net.Dialer
		c, err := d.DialContext(context.Background(), "tcp", strings.TrimPrefix(h.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "POST / HTTP/1.1\r\n"+head+"Connection: close\r\n\r\nab"); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode < 400 {
			t.Errorf("%s: got %d", name, res.StatusCode)
		}
		_ = c.Close()
	}
}
