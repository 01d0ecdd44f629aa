package server

import (
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"regexp"
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
	if origins := r.Header.Values("Origin"); !sandboxed(r.Host, g.domain) && slices.ContainsFunc(origins, func(o string) bool { return !g.ours(o, r.Host) }) {
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

// sandboxed reports whether a Host header names a port of a sandbox under a domain: what
// runs there decides about origins itself.
func sandboxed(host, domain string) bool {
	label, rest, _ := strings.Cut(hostname(host), ".")
	port, _, ok := strings.Cut(label, "-")
	_, err := strconv.ParseUint(port, 10, 16)
	return ok && err == nil && domain != "" && rest == domain
}

// ours reports whether an Origin header is of a page that may send requests to host: one
// that host itself served, one of this machine, or of a name of ours that is no sandbox's.
func (g *gate) ours(origin, host string) bool {
	u, err := url.Parse(origin)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") {
		return false
	}
	name := hostname(u.Host)
	if name == "" || sandboxed(u.Host, g.domain) {
		return false
	}
	return name == hostname(host) || net.ParseIP(name) == nil && g.known(u.Host) || net.ParseIP(name).IsLoopback()
}

var namePattern = regexp.MustCompile(`^[a-z0-9_-]+(\.[a-z0-9_-]+)*$`)

// hostname is the name or address in a Host header in lower case, empty if it is
// malformed.
func hostname(host string) string {
	name, literal := host, false
	if rest, ok := strings.CutPrefix(host, "["); ok {
		if name, literal = strings.CutSuffix(rest, "]"); !literal {
			name = ""
		}
	}
	if !literal && strings.Contains(host, ":") {
		h, port, err := net.SplitHostPort(host)
		if _, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil {
			return ""
		}
		name, literal = h, strings.HasPrefix(host, "[")
	}
	name = strings.ToLower(name)
	if literal {
		if ip := net.ParseIP(name); ip == nil || !strings.Contains(name, ":") {
			return ""
		}
		return name
	}
	if name = strings.TrimSuffix(name, "."); !namePattern.MatchString(name) {
		return ""
	}
	return name
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
