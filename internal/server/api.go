package server

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/bouvet-run/bouvet/e2b"
	"github.com/bouvet-run/bouvet/e2b/gateway"
	"github.com/bouvet-run/bouvet/internal/daemon"
)

// The API stands on the service.
var (
	_ e2b.Backend = (*daemon.Service)(nil)
	_ e2b.Data    = (*daemon.Service)(nil)
)

const (
	// maxBody bounds the body of a request to the daemon itself, bodyTimeout the time
	// that it may take (T49).
	maxBody     = 1 << 20
	bodyTimeout = 30 * time.Second
)

// handler is what all listeners serve.
func (s *server) handler() http.Handler {
	s.gateway = gateway.New(s.service, gateway.Options{Control: s.own(bounded(http.HandlerFunc(nothing))), Log: s.log})
	return &gate{domain: s.domainName(), extra: s.o.Config.AllowHosts, next: s.gateway}
}

// own serves what is the daemon's own business, and hands on the rest. A request for a
// sandbox, which may have the same paths, does not come here.
func (s *server) own(next http.Handler) http.Handler {
	metrics := s.metrics(s.newMetrics())
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/metrics":
			metrics(w, r)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// domainName is the domain without the port; empty without one.
func (s *server) domainName() string {
	if s.o.Config.Domain == "" {
		return ""
	}
	name, _, _ := s.o.Config.domain() // it was checked
	return name
}

// nothing answers where nothing is.
func nothing(w http.ResponseWriter, _ *http.Request) {
	refuse(w, http.StatusNotFound, "there is no such route")
}

// bounded gives the body of a request a bound and a time.
func bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body != nil && r.Body != http.NoBody {
			control := http.NewResponseController(w)
			if err := control.SetReadDeadline(time.Now().Add(bodyTimeout)); err == nil {
				r.Body = &timedBody{ReadCloser: http.MaxBytesReader(w, r.Body, maxBody), control: control}
			}
		}
		next.ServeHTTP(w, r)
	})
}

// A timedBody has a deadline, which ends with it: what the client sends after that is
// none of the request's.
type timedBody struct {
	io.ReadCloser
	control *http.ResponseController
}

// Read implements io.Reader.
func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		_ = b.control.SetReadDeadline(time.Time{}) // the connection is broken otherwise
	}
	return n, err
}

// admin reports whether a request is the administrator's.
func (s *server) admin(w http.ResponseWriter, r *http.Request) bool {
	key := r.Header.Get("X-Api-Key")
	if bearer, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok && key == "" {
		key = bearer
	}
	owner, err := s.service.Authenticate(r.Context(), key)
	switch {
	case errors.Is(err, daemon.ErrUnauthorized):
		refuse(w, http.StatusUnauthorized, "an API key of an administrator is needed; bouvet key create --admin makes one")
	case err != nil:
		refuse(w, http.StatusInternalServerError, "cannot look at keys")
	case !owner.Admin:
		refuse(w, http.StatusForbidden, "an API key of an administrator is needed")
	default:
		return true
	}
	return false
}
