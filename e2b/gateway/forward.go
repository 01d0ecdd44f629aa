package gateway

import (
	"context"
	"crypto/subtle"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/bouvet-run/bouvet/internal/daemon"
)

// forward has a server inside the sandbox answer a request.
func (g *Gateway) forward(w http.ResponseWriter, r *http.Request, t target, use *daemon.Use) {
	// A server may answer while it still reads. HTTP/2 can do so anyway.
	_ = http.NewResponseController(w).EnableFullDuplex()
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(pr *httputil.ProxyRequest) { rewrite(pr, t, &use.Sandbox) },
		Transport:     g.poolOf(use).transport,
		FlushInterval: -1, // events come one by one
		BufferPool:    &g.copies,
		ErrorLog:      slog.NewLogLogger(g.o.Log.Handler(), slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			g.failed(w, r, t, err)
		},
	}
	proxy.ServeHTTP(w, r)
}

// failed answers for a server that did not.
func (g *Gateway) failed(w http.ResponseWriter, r *http.Request, t target, err error) {
	if r.Context().Err() != nil {
		if !errors.Is(context.Cause(r.Context()), errEnded) {
			panic(http.ErrAbortHandler) // the client has gone
		}
		return // and the answer is that of all requests of a sandbox that has ended
	}
	g.o.Log.LogAttrs(r.Context(), slog.LevelDebug, "server in sandbox did not answer",
		slog.String("id", string(t.id)), slog.Int("port", int(t.port)), slog.Any("error", err))
	if errors.Is(err, errClosed) {
		closedPort(t).write(w)
		return
	}
	(&refusal{SandboxID: t.id, Message: "The server on this port of the sandbox did not answer as HTTP servers do", Code: http.StatusBadGateway, Port: t.port}).write(w)
}

// rewrite makes of a client's request the one that the server sees: without what is
// between the client and us, and with where it came from.
func rewrite(pr *httputil.ProxyRequest, t target, sb *daemon.Sandbox) {
	in, out := pr.In, pr.Out
	out.URL = &url.URL{
		Scheme: "http", Host: net.JoinHostPort("sandbox", strconv.Itoa(int(t.port))),
		Path: in.URL.Path, RawPath: in.URL.RawPath, RawQuery: in.URL.RawQuery, ForceQuery: in.URL.ForceQuery,
	}
	out.Trailer = in.Trailer // which has values once the body has been read
	pr.SetXForwarded()
	if mask := sb.Network.MaskRequestHost; mask != "" {
		out.Host = strings.ReplaceAll(mask, "${PORT}", strconv.Itoa(int(t.port)))
	}
	for _, name := range []string{headerID, headerPort, headerTraffic} {
		out.Header.Del(name)
	}
	// Names that servers use for secrets of their own, too: only ours are kept from
	// them (T52).
	if v := out.Header.Get(headerAccess); sb.AccessToken != "" && subtle.ConstantTimeCompare([]byte(v), []byte(sb.AccessToken)) == 1 {
		out.Header.Del(headerAccess)
	}
	for _, name := range []string{"X-Api-Key", "Authorization"} {
		if slices.ContainsFunc(out.Header.Values(name), apiKey.MatchString) {
			out.Header.Del(name)
		}
	}
}

// apiKey is what keys to the control plane look like.
var apiKey = regexp.MustCompile(`e2b_[0-9a-f]{40}`)
