package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/image"
	"github.com/bouvet-run/bouvet/internal/daemon"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vm/vmtest"
)

type images struct{}

func (images) Acquire(context.Context, string) (bouvet.Image, error) {
	return bouvet.Image{Path: "/image", Release: func() {}}, nil
}

func (images) List(context.Context) ([]image.Info, error) {
	return []image.Info{{Name: bouvet.DefaultImage}}, nil
}

// A buffer is written to by several.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// A running daemon of a test.
type running struct {
	t    *testing.T
	at   Addresses
	said *buffer
	stop func() error // and waits
}

// start starts a daemon with a fake driver.
func start(t *testing.T, dir string, change func(*Config)) *running {
	t.Helper()
	r, err := try(t, dir, change)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func try(t *testing.T, dir string, change func(*Config)) (*running, error) {
	t.Helper()
	c := DefaultConfig()
	c.StateDir, c.Listen, c.LogLevel = dir, "127.0.0.1:0", slog.LevelDebug
	if change != nil {
		change(&c)
	}
	r := &running{t: t, said: &buffer{}}
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan Addresses, 1), make(chan error, 1)
	driver := vmtest.NewFake(t, vmtest.FakeOptions{})
	go func() {
		ended <- Serve(ctx, Options{
			Config: c, Stderr: r.said, Ready: func(a Addresses) { ready <- a },
			Lower: func(_ context.Context, _ *Config, dir string, log *slog.Logger) (Lower, error) {
				snapshots, err := savedIn(dir)
				if err != nil {
					return Lower{}, err
				}
				m, err := bouvet.NewManager(bouvet.ManagerOptions{Driver: driver, Images: images{}, Snapshots: snapshots, Log: log})
				return Lower{Manager: m, Driver: driver, Snapshots: snapshots, Images: images{}}, err
			},
		})
	}()
	r.stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	select {
	case r.at = <-ready:
		t.Cleanup(func() {
			if err := r.stop(); err != nil {
				t.Errorf("end: %v", err)
			}
		})
		return r, nil
	case err := <-ended:
		cancel()
		return nil, err
	}
}

// get makes one request and returns the status and the body.
func get(t *testing.T, client *http.Client, url string, change func(*http.Request)) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(req)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// plain is a client that keeps no connection.
func plain(dial func(context.Context, string, string) (net.Conn, error)) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}, Timeout: testutil.Patience(20 * time.Second)}
}

func (r *running) socket() *http.Client {
	return plain(func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", r.at.Socket)
	})
}

var shownKey = regexp.MustCompile(`e2b_[0-9a-f]{40}`)

func TestServe(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	dir := t.TempDir()
	r := start(t, dir, nil)
	if code, body := get(t, r.socket(), "http://localhost/metrics", nil); code != http.StatusOK || !strings.Contains(body, "bouvet_sandboxes_running 0") {
		t.Errorf("metrics on the socket: %d %.100s", code, body)
	}
	key := shownKey.FindString(r.said.String())
	tcp, url := plain(nil), "http://"+r.at.TCP
	for name, tt := range map[string]struct {
		key  string
		code int
	}{"none": {"", 401}, "wrong": {"e2b_" + strings.Repeat("0", 40), 401}, "no administrator's": {key, 403}} {
		if code, _ := get(t, tcp, url+"/metrics", func(r *http.Request) { r.Header.Set("X-API-Key", tt.key) }); code != tt.code {
			t.Errorf("key %s: %d", name, code)
		}
	}
	db, err := OpenDatabase(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	admin, _, err := daemon.NewKey(t.Context(), db, "", "", true)
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	if code, _ := get(t, tcp, url+"/metrics", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+admin) }); code != 200 {
		t.Errorf("key of an administrator: %d", code)
	}
	if code, body := get(t, tcp, url+"/nothing", nil); code != 404 || !strings.Contains(body, `"code":404`) {
		t.Errorf("unknown route: %d %s", code, body)
	}
	// T33: one daemon a directory.
	if _, err := try(t, dir, nil); !errors.Is(err, ErrRunning) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("second daemon: %v", err)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(r.at.Socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	again := start(t, dir, nil)
	if shownKey.MatchString(again.said.String()) {
		t.Error("the second start shows a key")
	}
	if err := again.stop(); err != nil {
		t.Error(err)
	}
}

// The service manager is told when requests are answered, and when the end begins.
func TestTheServiceManagerIsTold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	var lc net.ListenConfig
	c, err := lc.ListenPacket(t.Context(), "unixgram", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	t.Setenv("NOTIFY_SOCKET", path)
	r := start(t, t.TempDir(), nil)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"READY=1", "STOPPING=1"} {
		b := make([]byte, 100)
		_ = c.SetReadDeadline(time.Now().Add(testutil.Patience(10 * time.Second)))
		if n, _, err := c.ReadFrom(b); err != nil || string(b[:n]) != want {
			t.Errorf("told %q, %v; want %q", b[:n], err, want)
		}
	}
}

// T46: nobody else can connect to the socket, and what is in its place stays.
func TestTheSocketIsPrivate(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, socketName), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := try(t, dir, nil); err == nil || !strings.Contains(err.Error(), "move it away") {
		t.Errorf("with a file in its place: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, socketName)); err != nil {
		t.Fatal(err)
	}
	// One that a killed daemon left is replaced.
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "unix", filepath.Join(dir, socketName))
	if err != nil {
		t.Fatal(err)
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	_ = l.Close()
	r := start(t, dir, nil)
	info, err := os.Lstat(r.at.Socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket %v, %v", info, err)
	}
}

func TestOperationsAreCounted(t *testing.T) {
	s := &server{operations: newOperations()}
	s.observe("create", time.Second, nil)
	s.observe("create", time.Second, errors.New("failed"))
	s.observe("kill", time.Second, fmt.Errorf("no: %w", daemon.ErrNotFound))
	r := prometheus.NewRegistry()
	r.MustRegister(s.operations)
	families, err := r.Gather()
	if err != nil || len(families) != 1 || len(families[0].GetMetric()) != 3 {
		t.Errorf("metrics %v, %v", families, err)
	}
}

// T48: names that others' DNS points here, and pages of others, are refused everywhere.
func TestHostsAndOrigins(t *testing.T) {
	g := &gate{domain: "sbx.test", extra: []string{"box.lan"}, next: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) })}
	for _, tt := range []struct {
		host, origin string
		want         int
	}{
		{"127.0.0.1:3900", "", 204},
		{"[::1]:3900", "", 204},
		{"[::1]", "", 204},
		{"localhost", "", 204},
		{"LOCALHOST.:80", "", 204},
		{"api.sbx.test:8443", "", 204},
		{"8000-i123.sbx.test", "", 204},
		{"sbx.test", "", 204},
		{"box.lan", "", 204},
		{"evil.com", "", 403},
		{"sbx.test.evil.com", "", 403},
		{"evilsbx.test", "", 403},
		{"a@localhost", "", 403},
		{"localhost:99999", "", 403},
		{"localhost:", "", 403},
		{"localhost:80:80", "", 403},
		{"", "", 403},
		{"localhost", "http://localhost:5173", 204},
		{"localhost", "http://127.0.0.1", 204},
		{"192.168.0.2:3900", "http://192.168.0.2:3900", 204},
		{"192.168.0.2:3900", "http://192.168.0.3", 403},
		{"localhost", "https://evil.com", 403},
		{"localhost", "null", 403},
		{"localhost", "file://", 403},
		{"api.sbx.test", "https://sbx.test", 204},
		{"api.sbx.test", "https://8000-i123.sbx.test", 403},
		{"8000-i123.sbx.test", "https://evil.com", 204},
		{"99999-i123.sbx.test", "https://evil.com", 403},
	} {
		req := &http.Request{Method: http.MethodGet, Host: tt.host, Header: http.Header{}}
		if tt.origin != "" {
			req.Header.Set("Origin", tt.origin)
		}
		w := &status{header: http.Header{}}
		if g.ServeHTTP(w, req); w.code != tt.want {
			t.Errorf("host %q, origin %q: %d, not %d", tt.host, tt.origin, w.code, tt.want)
		}
	}
}

// What a client calls its host is taken apart without harm, and in one way only.
func FuzzHostname(f *testing.F) {
	for _, host := range []string{"localhost", "[::1]:80", "8000-i1.sbx.test:8443", "a@b", "[", "]", "::", "x:y", ".", "a..b"} {
		f.Add(host)
	}
	f.Fuzz(func(t *testing.T, host string) {
		name := hostname(host)
		if strings.ContainsAny(name, "@/\\?# ") || name != strings.ToLower(name) {
			t.Errorf("%q is the host %q", host, name)
		}
		if again := hostname(net.JoinHostPort(name, "80")); name != "" && again != name {
			t.Errorf("%q is the host %q, which is the host %q", host, name, again)
		}
	})
}

type status struct {
	header http.Header
	code   int
}

func (s *status) Header() http.Header         { return s.header }
func (s *status) Write(p []byte) (int, error) { return len(p), nil }
func (s *status) WriteHeader(code int)        { s.code = code }

// T49: with more connections than there may be, those that do nothing give way.
func TestIdleConnectionsGiveWay(t *testing.T) {
	const limit = 8
	r := start(t, t.TempDir(), func(c *Config) { c.Connections = limit })
	var d net.Dialer
	var idle []net.Conn
	for range 4 * limit {
		c, err := d.DialContext(t.Context(), "tcp", r.at.TCP)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		idle = append(idle, c)
	}
	if code, _ := get(t, plain(nil), "http://"+r.at.TCP+"/x", nil); code != 404 {
		t.Errorf("in the crowd: %d", code)
	}
	cut := 0
	for _, c := range idle[:2*limit] {
		_ = c.SetReadDeadline(time.Now().Add(testutil.Patience(5 * time.Second)))
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, io.EOF) || err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			cut++
		}
	}
	if cut != 2*limit {
		t.Errorf("%d of the %d oldest were closed", cut, 2*limit)
	}
}

// T49: headers and bodies that are too large are refused.
func TestLargeRequestsAreRefused(t *testing.T) {
	r := start(t, t.TempDir(), nil)
	client := plain(nil)
	code, _ := get(t, client, "http://"+r.at.TCP+"/x", func(r *http.Request) { r.Header.Set("X-Large", strings.Repeat("x", 1<<20)) })
	if code != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("header: %d", code)
	}
	var got error
	h := bounded(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, got = io.Copy(io.Discard, r.Body) }))
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Second}
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = srv.Serve(l) }()
	defer func() { _ = srv.Close() }()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+l.Addr().String(), io.LimitReader(zeros{}, 1<<30))
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := client.Do(req); err == nil {
		_ = resp.Body.Close()
	}
	_ = srv.Shutdown(t.Context())
	if _, large := errors.AsType[*http.MaxBytesError](got); !large {
		t.Errorf("body: %v", got)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func TestTLSUnderADomain(t *testing.T) {
	dir := t.TempDir()
	domain := func(c *Config) { c.Domain, c.TLSListen = "sbx.test:8443", "127.0.0.1:0" }
	var authorities []string
	for range 2 {
		r := start(t, dir, domain)
		pemData, err := os.ReadFile(r.at.CA)
		if err != nil {
			t.Fatal(err)
		}
		authorities = append(authorities, string(pemData))
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pemData)
		client := &http.Client{Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "tcp", r.at.TLS)
			},
		}}
		for name, want := range map[string]int{"api.sbx.test": 404, "8000-i0123456789abcdefghij.sbx.test": 502, "sbx.test": 404} {
			resp, err := client.Get("https://" + name + ":8443/x")
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.ProtoMajor != 2 || resp.StatusCode != want {
				t.Errorf("%s: %s %s", name, resp.Proto, resp.Status)
			}
		}
		client.CloseIdleConnections()
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	}
	if authorities[0] != authorities[1] {
		t.Error("the second start has another authority")
	}
	key := filepath.Join(dir, "daemon", "tls", "ca-sbx.test-key.pem")
	if info, err := os.Stat(key); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key %v, %v", info, err)
	}
	block, _ := pem.Decode([]byte(authorities[0]))
	ca, err := x509.ParseCertificate(block.Bytes)
	if err != nil || !ca.PermittedDNSDomainsCritical || len(ca.PermittedDNSDomains) != 1 {
		t.Errorf("authority %+v, %v", ca, err)
	}
	if err := os.WriteFile(key, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := try(t, dir, domain); err == nil || !strings.Contains(err.Error(), "move it and its key away") {
		t.Errorf("with a damaged key: %v", err)
	}
}

func TestCertificatesAreRenewed(t *testing.T) {
	a, err := openAuthority(t.TempDir(), "sbx.test")
	if err != nil {
		t.Fatal(err)
	}
	l := &leaf{a: a, domain: "sbx.test", log: slog.New(slog.DiscardHandler)}
	first, err := l.get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if same, err := l.get(t.Context()); err != nil || same != first {
		t.Errorf("another one: %v", err)
	}
	l.cert.Leaf.NotAfter = time.Now().Add(renewBefore - time.Minute)
	if next, err := l.get(t.Context()); err != nil || next == first {
		t.Errorf("not renewed: %v", err)
	}
}
