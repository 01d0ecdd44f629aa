package server

import (
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// A gate lets requests in that name a host of ours and come from a page of ours, if from
// a page: a name that another's DNS points here must not make a browser our client (T48).
type gate struct {
	domain string   // "" for none
	extra  []string // further names
	next   http.Handler
}

// ServeHTTP implements http.Handler.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !g.known(r.Host) {
		refuse(w, http.StatusForbidden, "this host name is not one of this server's; see --allow-hosts")
		return
	}
	if origins := r.Header.Values("Origin"); !g.sandboxed(r.Host) && slices.ContainsFunc(origins, func(o string) bool { return !g.ours(o, r.Host) }) {
		refuse(w, http.StatusForbidden, "requests from pages of other origins are refused")
		return
	}
	g.next.ServeHTTP(w, r)
}

// known reports whether a Host header names this server. An IP address cannot be made to
// by DNS.
func (g *gate) known(host string) bool {
	name := hostname(host)
	if name == "" {
		return false
	}
	if net.ParseIP(name) != nil || name == "localhost" || strings.HasSuffix(name, ".localhost") || slices.Contains(g.extra, name) {
		return true
	}
	return g.domain != "" && (name == g.domain || strings.HasSuffix(name, "."+g.domain))
}

// sandboxed reports whether a Host header names a port of a sandbox: what runs there
// decides about origins itself.
func (g *gate) sandboxed(host string) bool {
	name := hostname(host)
	label, rest, _ := strings.Cut(name, ".")
	port, _, ok := strings.Cut(label, "-")
	_, err := strconv.ParseUint(port, 10, 16)
	return ok && err == nil && g.domain != "" && rest == g.domain
}

// ours reports whether an Origin header is of a page that may send requests to host: one
// that host itself served, one of this machine, or of a name of ours that is no sandbox's.
func (g *gate) ours(origin, host string) bool {
	u, err := url.Parse(origin)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") {
		return false
	}
	name := hostname(u.Host)
	if name == "" || g.sandboxed(u.Host) {
		return false
	}
	return name == hostname(host) || net.ParseIP(name) == nil && g.known(u.Host) || net.ParseIP(name).IsLoopback()
}

// hostname is the name in a Host header in lower case, empty if it is malformed.
func hostname(host string) string {
	if strings.ContainsAny(host, "@/\\?# ") {
		return ""
	}
	name := host
	if strings.HasPrefix(host, "[") || strings.Contains(host, ":") {
		h, port, err := net.SplitHostPort(host)
		switch {
		case err == nil:
			if _, err := strconv.ParseUint(port, 10, 16); err != nil {
				return ""
			}
			name = h
		case strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]"):
			name = host[1 : len(host)-1]
		default:
			return ""
		}
	}
	return strings.TrimSuffix(strings.ToLower(name), ".")
}

// refuse answers in the form of the API.
func refuse(w http.ResponseWriter, code int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	body, err := json.Marshal(map[string]any{"code": code, "message": message})
	if err == nil {
		_, _ = w.Write(body) // nobody can be told of a failure
	}
}
