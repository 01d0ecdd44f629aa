package server

import (
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// A pipeListener accepts pipes.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { close(l.closed); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// T49: whoever sends a header or a body byte by byte is cut off in the end.
func TestSlowRequestsAreCutOff(t *testing.T) {
	for _, tt := range []struct {
		name, begin string
		limit       time.Duration
	}{
		{"header", "GET / HTTP/1.1\r\nHost: localhost\r\n", headerTimeout},
		{"body", "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n", bodyTimeout},
		{"nothing", "", headerTimeout},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
				srv := newHTTPServer(newCrowd(10), bounded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if _, err := io.Copy(io.Discard, r.Body); err != nil {
						w.Header().Set("Connection", "close")
						w.WriteHeader(http.StatusRequestTimeout)
					}
				})))
				served := make(chan error)
				go func() { served <- srv.Serve(l) }()
				client, server := net.Pipe()
				l.conns <- server
				began := time.Now()
				wrote := make(chan struct{})
				go func() {
					defer close(wrote)
					for text := tt.begin; ; text = "x" {
						if _, err := io.WriteString(client, text); err != nil {
							return
						}
						time.Sleep(time.Second)
					}
				}()
				if _, err := io.Copy(io.Discard, client); err != nil {
					t.Errorf("read: %v", err)
				}
				if took := time.Since(began); took > tt.limit+2*time.Second {
					t.Errorf("it was cut off after %v, not %v", took, tt.limit)
				}
				_ = client.Close()
				<-wrote
				if err := srv.Close(); err != nil {
					t.Error(err)
				}
				if err := <-served; !errors.Is(err, http.ErrServerClosed) {
					t.Error(err)
				}
			})
		})
	}
}
