package gateway_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/e2b/gateway"
	"github.com/bouvet-run/bouvet/image"
	"github.com/bouvet-run/bouvet/internal/daemon"
	"github.com/bouvet-run/bouvet/internal/snapstore"
	"github.com/bouvet-run/bouvet/internal/store"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/internal/wait"
	"github.com/bouvet-run/bouvet/vm/vmtest"
)

type images struct{}

func (images) Acquire(context.Context, string) (bouvet.Image, error) {
	return bouvet.Image{Path: "/image", Release: func() {}}, nil
}

func (images) List(context.Context) ([]image.Info, error) {
	return []image.Info{{Name: bouvet.DefaultImage}}, nil
}

var alice = daemon.Owner{ID: "alice", Name: "Alice"}

// A house is a daemon with sandboxes whose ports are this host's, since their agents are
// in this process, and a server in front of it.
type house struct {
	*daemon.Service
	t    testing.TB
	fake *vmtest.Fake
	url  string
	http *http.Client
}

// envd answers what it was asked.
type envd struct{ name string }

func (e envd) ServeSandbox(w http.ResponseWriter, r *http.Request, use *daemon.Use) {
	if r.URL.Path == "/until-ended" {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done() // and it ends as if all were well
		return
	}
	if r.URL.Path == "/silent" {
		<-r.Context().Done()
		return
	}
	_, _ = io.WriteString(w, e.name+" "+string(use.Sandbox.ID)+" "+r.Method+" "+r.URL.Path)
}

func control(w http.ResponseWriter, r *http.Request) {
	_, _ = io.WriteString(w, "control "+r.Method+" "+r.URL.Path)
}

// newHouse starts a daemon and its server, HTTP/2 if tls is set.
func newHouse(t testing.TB, tls bool, change ...func(*gateway.Options)) *house {
	t.Helper()
	testutil.Ledger(t, testutil.Scope{})
	h := &house{t: t, fake: vmtest.NewFake(t, vmtest.FakeOptions{})}
	dir := t.TempDir()
	db, err := store.Open(t.Context(), filepath.Join(dir, "state.db"), true)
	if err != nil {
		t.Fatal(err)
	}
	snaps, err := snapstore.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	manager, err := bouvet.NewManager(bouvet.ManagerOptions{Driver: h.fake, Images: images{}, Snapshots: snaps, MaxSandboxes: -1})
	if err != nil {
		t.Fatal(err)
	}
	h.Service, err = daemon.New(t.Context(), daemon.Options{Manager: manager, Store: db, Snapshots: snaps, Features: h.fake.Features(), Images: images{}})
	if err != nil {
		t.Fatal(err)
	}
	o := gateway.Options{Envd: envd{"envd"}, Control: http.HandlerFunc(control)}
	for _, c := range change {
		c(&o)
	}
	g := gateway.New(h.Service, o)
	server := httptest.NewUnstartedServer(g)
	if tls {
		server.EnableHTTP2 = true
		server.StartTLS()
	} else {
		server.Start()
	}
	h.url, h.http = server.URL, server.Client()
	h.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience(20*time.Second))
		defer cancel()
		if err := h.Close(ctx, daemon.CloseKills); err != nil {
			t.Error(err)
		}
		h.http.CloseIdleConnections()
		server.Close()
		g.Close()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func (h *house) create(o daemon.CreateOptions) daemon.Sandbox {
	h.t.Helper()
	sb, err := h.Create(h.t.Context(), alice, o)
	if err != nil {
		h.t.Fatal(err)
	}
	return sb
}

// guest starts a server in the sandboxes and returns its port.
func (h *house) guest(f http.HandlerFunc) int {
	h.t.Helper()
	s := httptest.NewServer(f)
	h.t.Cleanup(s.Close)
	return portOf(h.t, s.Listener.Addr())
}

// rawGuest starts a server that speaks no HTTP of Go's, once for each connection.
func (h *house) rawGuest(f func(net.Conn)) int {
	h.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		h.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f(c)
			_ = c.Close()
		}
	}()
	h.t.Cleanup(func() { _ = l.Close(); <-done })
	return portOf(h.t, l.Addr())
}

func portOf(t testing.TB, a net.Addr) int {
	t.Helper()
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		t.Fatalf("%v is no address of TCP", a)
	}
	return tcp.Port
}

// request makes one for a port of a sandbox, which it names in its headers.
func (h *house) request(method string, id daemon.ID, port int, path string, body io.Reader) *http.Request {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), testutil.Patience(30*time.Second))
	h.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, method, h.url+path, body)
	if err != nil {
		h.t.Fatal(err)
	}
	r.Header.Set("E2b-Sandbox-Id", string(id))
	r.Header.Set("E2b-Sandbox-Port", strconv.Itoa(port))
	return r
}

func (h *house) do(r *http.Request) *http.Response {
	h.t.Helper()
	res, err := h.http.Do(r)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

// get returns the status and the body of an answer.
func (h *house) get(id daemon.ID, port int, path string) (int, string) {
	h.t.Helper()
	return h.answer(h.request(http.MethodGet, id, port, path, nil))
}

func (h *house) answer(r *http.Request) (int, string) {
	h.t.Helper()
	res := h.do(r)
	body, err := io.ReadAll(res.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// refused checks an answer of the gateway's own.
func refused(t testing.TB, status int, body string, wantStatus int, wantMessage string) {
	t.Helper()
	var got struct {
		SandboxID string
		Message   string
		Code      int
		Port      int
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatalf("%d %q: %v", status, body, err)
	}
	if status != wantStatus || got.Code != wantStatus || got.Message != wantMessage {
		t.Errorf("got %d %+v, want %d %q", status, got, wantStatus, wantMessage)
	}
}

// until waits for something that nobody announces.
func until(t testing.TB, what string, f func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience(10*time.Second))
	defer cancel()
	if err := wait.Until(ctx, func() (bool, error) { return f(), nil }); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
