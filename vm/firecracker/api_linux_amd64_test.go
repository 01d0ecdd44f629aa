package firecracker

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// scripted is a client of a Firecracker that reads one request and then says that.
func scripted(t *testing.T, says string) *api {
	t.Helper()
	return newAPI(func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			defer func() { _ = theirs.Close() }()
			r, err := http.ReadRequest(bufio.NewReader(theirs))
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(theirs, says)
			if strings.HasSuffix(says, "...") { // and goes on
				_, _ = io.Copy(theirs, endless{})
			}
		}()
		return ours, nil
	})
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// T29: what Firecracker may answer, which may be in a guest's hands, is bounded and
// told.
func TestAPIReplies(t *testing.T) {
	const head = "HTTP/1.1 "
	for _, tt := range []struct{ name, says, want string }{
		{"obeys", head + "204 No Content\r\n\r\n", ""},
		{"tells", head + "200 OK\r\nContent-Length: 32\r\n\r\n{\"firecracker_version\":\"1.15.1\"}\n", ""},
		{"refuses", head + "400 Bad Request\r\nContent-Length: 23\r\n\r\n{\"fault_message\":\"no!\"}\n", `refuses (status 400): "no!"`},
		{"refuses without a word", head + "400 Bad Request\r\nContent-Length: 0\r\n\r\n", `status 400): ""`},
		{"another status", head + "302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n", "status 302"},
		{"no HTTP", "nonsense", "malformed HTTP"},
		{"ends too early", head + "200 OK\r\nContent-Length: 100\r\n\r\n{", "EOF"},
		{"endless body", head + "200 OK\r\n\r\n...", "longer than"},
		{"endless header", head + "200 OK\r\nX: ...", "exceeded"},
		{"endless fault", head + "500 Oops\r\n\r\n...", "status 500"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := scripted(t, tt.says).put(t.Context(), pathVM, &vmState{statePaused})
			if tt.want == "" {
				if err != nil {
					t.Errorf("got %v", err)
				}
				return
			}
			wantError(t, tt.name, err, tt.want)
			if err != nil && len(err.Error()) > 2*maxFault {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
	var v versionReply
	if err := scripted(t, head+"200 OK\r\nContent-Length: 12\r\n\r\n{\"firecrack").get(t.Context(), pathVersion, &v); err == nil {
		t.Error("half an answer was taken")
	}
	var e *APIError
	err := scripted(t, head+"400 Bad Request\r\nContent-Length: 23\r\n\r\n{\"fault_message\":\"no!\"}\n").get(t.Context(), pathVersion, &v)
	if !errors.As(err, &e) || e.Status != 400 || e.Fault != "no!" || !refused(err) {
		t.Errorf("got %v, want an APIError", err)
	}
}

// T29: a request that Firecracker would not read is not sent; one that it does not
// answer ends in time.
func TestAPIRequests(t *testing.T) {
	a := newAPI(func(context.Context) (net.Conn, error) { return nil, errors.New("it was sent") })
	long := &bootSource{Args: strings.Repeat("x", maxBody)}
	wantError(t, "long", a.put(t.Context(), pathBootSource, long), "longer than 51200")
	silent := newAPI(func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		return ours, nil
	})
	begin := time.Now()
	err := silent.call(t.Context(), 50*time.Millisecond, http.MethodGet, pathInstance, nil, nil)
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > 10*time.Second {
		t.Errorf("got %v after %v, want DeadlineExceeded", err, time.Since(begin))
	}
}
