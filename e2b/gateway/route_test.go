package gateway_test

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/bouvet-run/bouvet/e2b/gateway"
	"github.com/bouvet-run/bouvet/internal/daemon"
)

const (
	gone     = "The sandbox was not found"
	badPort  = "the port of the sandbox is not a number from 1 to 65535"
	reserved = "this port of the sandbox is reserved"
)

// T43: what a request is for is parsed once, and never the control plane by mistake.
func TestTargets(t *testing.T) {
	h := newHouse(t, false)
	sb := h.create(daemon.CreateOptions{})
	id := string(sb.ID)
	tests := []struct {
		name, host, id, port string
		status               int
		want                 string // body, or message of a refusal
	}{
		{"no sandbox", "127.0.0.1:3900", "", "", 200, "control GET /x"},
		{"API host", "api.sbx.test", "", "", 200, "control GET /x"},
		{"headers", "127.0.0.1:3900", id, "49983", 200, "envd " + id + " GET /x"},
		{"headers, IPv6", "[::1]:3900", id, "49983", 200, "envd " + id + " GET /x"},
		{"headers, sandbox host", "sandbox.sbx.test:8443", id, "49983", 200, "envd " + id + " GET /x"},
		{"legacy ID", "localhost", id + "-6532622b", "49983", 200, "envd " + id + " GET /x"},
		{"host", "49983-" + id + ".sbx.test:8443", "", "", 200, "envd " + id + " GET /x"},
		{"host, legacy ID", "49983-" + id + "-6532622b.sbx.test", "", "", 200, "envd " + id + " GET /x"},
		{"host in capitals", "49983-" + strings.ToUpper(id) + ".SBX.test", "", "", 200, "envd " + id + " GET /x"},
		{"host and equal headers", "49983-" + id + ".sbx.test", id, "49983", 200, "envd " + id + " GET /x"},
		{"the host counts more", "49983-" + id + ".sbx.test", "i00000000000000000000", "8000", 200, "envd " + id + " GET /x"},
		{"no port", "localhost", id, "", 400, "a request for a sandbox has one E2b-Sandbox-Id and one E2b-Sandbox-Port header"},
		{"no ID", "localhost", "", "49983", 400, "a request for a sandbox has one E2b-Sandbox-Id and one E2b-Sandbox-Port header"},
		{"zeros", "localhost", id, "049983", 400, badPort},
		{"sign", "localhost", id, "+49983", 400, badPort},
		{"dot", "localhost", id, "49983.", 400, badPort},
		{"hexadecimal", "localhost", id, "0xc33f", 400, badPort},
		{"underscore", "localhost", id, "49_983", 400, badPort},
		{"a name", "localhost", id, "http", 400, badPort},
		{"a host", "localhost", id, "49983@127.0.0.1", 400, badPort},
		{"0", "localhost", id, "0", 400, badPort},
		{"-1", "localhost", id, "-1", 400, badPort},
		{"65536", "localhost", id, "65536", 400, badPort},
		{"65536+49983", "localhost", id, "115519", 400, badPort},
		{"agent", "localhost", id, "52", 400, reserved},
		{"agent's exec", "localhost", id, "10700", 400, reserved},
		{"host: zeros", "049983-" + id + ".sbx.test", "", "", 400, badPort},
		{"host: sign", "+49983-" + id + ".sbx.test", "", "", 400, badPort},
		{"host: 0", "0-" + id + ".sbx.test", "", "", 400, badPort},
		{"host: 65536", "65536-" + id + ".sbx.test", "", "", 400, badPort},
		{"host: agent", "52-" + id + ".sbx.test", "", "", 400, reserved},
		{"host: nothing", "-" + id + ".sbx.test", "", "", 400, badPort},
		{"unknown", "localhost", "i00000000000000000000", "49983", 502, gone},
		{"not an ID", "localhost", "..", "49983", 502, gone},
		{"path as ID", "localhost", "../" + id, "49983", 502, gone},
		{"ID in capitals", "localhost", strings.ToUpper(id), "49983", 502, gone},
		{"client in capitals", "localhost", id + "-ABC", "49983", 502, gone},
		{"empty client", "localhost", id + "-", "49983", 502, gone},
		{"host: unknown", "49983-i00000000000000000000.sbx.test", "", "", 502, gone},
		{"host: not an ID", "49983-x.sbx.test", "", "", 502, gone},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := h.request(http.MethodGet, "", 0, "/x", nil)
			r.Header = http.Header{}
			if tt.id != "" {
				r.Header.Set("E2b-Sandbox-Id", tt.id)
			}
			if tt.port != "" {
				r.Header.Set("E2b-Sandbox-Port", tt.port)
			}
			r.Host = tt.host
			status, body := h.answer(r)
			if tt.status == 200 {
				if status != 200 || body != tt.want {
					t.Errorf("got %d %q, want %q", status, body, tt.want)
				}
				return
			}
			refused(t, status, body, tt.status, tt.want)
		})
	}
	t.Run("headers twice", func(t *testing.T) {
		r := h.request(http.MethodGet, sb.ID, 49983, "/x", nil)
		r.Header.Add("E2b-Sandbox-Port", "8000")
		status, body := h.answer(r)
		refused(t, status, body, 400, "a request for a sandbox has one E2b-Sandbox-Id and one E2b-Sandbox-Port header")
	})
	t.Run("another form of the path", func(t *testing.T) {
		for _, path := range []string{"//x", "/a/../x", "/%2e%2e/x", "http://evil.test/x"} {
			r := h.request(http.MethodGet, sb.ID, 49983, "/x", nil)
			r.URL.Opaque = path
			if status, body := h.answer(r); status != 200 || !strings.HasPrefix(body, "envd "+id) {
				t.Errorf("%s: got %d %q", path, status, body)
			}
		}
	})
}

func TestInterpreterPort(t *testing.T) {
	h := newHouse(t, false, func(o *gateway.Options) { o.Interpreter = envd{"interpreter"} })
	sb := h.create(daemon.CreateOptions{})
	if status, body := h.get(sb.ID, 49999, "/health"); status != 200 || !strings.HasPrefix(body, "interpreter ") {
		t.Errorf("got %d %q", status, body)
	}
}

// Nobody becomes a sandbox's master through the endpoint that needs no token.
func TestEndpointsOfTheControlPlane(t *testing.T) {
	h := newHouse(t, false)
	sb := h.create(daemon.CreateOptions{})
	for _, path := range []string{"/init", "/freeze", "/unfreeze", "/fsfreeze", "/fsthaw", "/collapse", "/upgrade", "/init/", "//init", "/x/../init", "/%69nit"} {
		r := h.request(http.MethodPost, sb.ID, 49983, "/", nil)
		r.URL.Path, r.URL.RawPath = strings.ReplaceAll(path, "%69", "i"), path
		status, body := h.answer(r)
		if want := "This endpoint is reserved for the E2B control plane and is not reachable through the sandbox URL\n"; status != 404 || body != want {
			t.Errorf("%s: got %d %q", path, status, body)
		}
	}
}

func sign(path, operation, user, token, expires string) string {
	text := path + ":" + operation + ":" + user + ":" + token
	if expires != "" {
		text += ":" + expires
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + strings.TrimRight(base64.StdEncoding.EncodeToString(sum[:]), "=")
}

// A signed URL finds its sandbox, and only one that was signed with its token.
func TestSignedURLs(t *testing.T) {
	h := newHouse(t, false)
	h.create(daemon.CreateOptions{}) // without a token
	h.create(daemon.CreateOptions{Secure: true})
	sb := h.create(daemon.CreateOptions{Secure: true})
	paused := h.create(daemon.CreateOptions{Secure: true})
	if err := h.Pause(t.Context(), alice, paused.ID, true); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("a", 5000)
	tests := []struct {
		name, method, path      string
		query                   url.Values
		control                 bool
		sign, op, user, expires string
		token                   string
	}{
		{name: "download", method: "GET", path: "/files", sign: "a b/ü.txt", op: "read"},
		{name: "head", method: "HEAD", path: "/files", sign: "a.txt", op: "read"},
		{name: "upload", method: "POST", path: "/files", sign: "a.txt", op: "write"},
		{name: "upload anywhere", method: "POST", path: "/files", sign: "", op: "write"},
		{name: "user", method: "GET", path: "/files", sign: "a.txt", op: "read", user: "root"},
		{name: "expires", method: "GET", path: "/files", sign: "a.txt", op: "read", expires: "1999999999"},
		{name: "expired long ago", method: "GET", path: "/files", sign: "a.txt", op: "read", expires: "1"},
		{name: "another operation", method: "GET", path: "/files", sign: "a.txt", op: "write", control: true},
		{name: "another path", method: "GET", path: "/files/", sign: "a.txt", op: "read", control: true},
		{name: "another method", method: "DELETE", path: "/files", sign: "a.txt", op: "read", control: true},
		{name: "another token", method: "GET", path: "/files", sign: "a.txt", op: "read", token: "x", control: true},
		{name: "no token", method: "GET", path: "/files", sign: "a.txt", op: "read", token: "-", control: true},
		{name: "paused", method: "GET", path: "/files", sign: "a.txt", op: "read", token: paused.AccessToken, control: true},
		{name: "long", method: "GET", path: "/files", sign: long, op: "read", control: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			token := sb.AccessToken
			if tt.token != "" {
				token = strings.TrimPrefix(tt.token, "-")
			}
			q := url.Values{"path": {tt.sign}, "signature": {sign(tt.sign, tt.op, tt.user, token, tt.expires)}}
			if tt.user != "" {
				q.Set("username", tt.user)
			}
			if tt.expires != "" {
				q.Set("signature_expiration", tt.expires)
			}
			r := h.request(tt.method, "", 0, tt.path+"?"+q.Encode(), nil)
			r.Header = http.Header{}
			status, body := h.answer(r)
			want := fmt.Sprintf("envd %s %s %s", sb.ID, tt.method, tt.path)
			if tt.control {
				want = "control " + tt.method + " " + tt.path
			}
			if tt.method == "HEAD" {
				want = ""
			}
			if status != 200 || body != want {
				t.Errorf("got %d %q, want %q", status, body, want)
			}
		})
	}
}
