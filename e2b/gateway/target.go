package gateway

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/bouvet-run/bouvet/internal/daemon"
)

// Ports of every sandbox that are served on the host.
const (
	EnvdPort        = 49983
	InterpreterPort = 49999
)

// reserved are the ports of the agent.
var reserved = map[uint16]bool{52: true, 10700: true}

const (
	headerID      = "E2b-Sandbox-Id"
	headerPort    = "E2b-Sandbox-Port"
	headerTraffic = "E2b-Traffic-Access-Token"
	headerAccess  = "X-Access-Token"
)

// A target is what a request is for. The zero value is the control plane.
type target struct {
	id   daemon.ID
	port uint16
}

// targetOf reads the target of a request from its host name, or else from its headers. A
// request that names a sandbox as it must not is refused, and is never the control plane's.
func targetOf(r *http.Request) (target, *refusal) {
	if id, port, ok := splitHost(r.Host); ok {
		return parseTarget(id, port)
	}
	ids, ports := r.Header.Values(headerID), r.Header.Values(headerPort)
	switch {
	case len(ids) == 0 && len(ports) == 0:
		return target{}, nil
	case len(ids) != 1 || len(ports) != 1:
		return target{}, &refusal{Code: http.StatusBadRequest, Message: "a request for a sandbox has one " + headerID + " and one " + headerPort + " header"}
	}
	return parseTarget(ids[0], ports[0])
}

// parseTarget gives both parts their only form, which is what is looked at from here on
// (T43).
func parseTarget(id, port string) (target, *refusal) {
	n, ok := parsePort(port)
	if !ok {
		return target{}, &refusal{Code: http.StatusBadRequest, Message: "the port of the sandbox is not a number from 1 to 65535"}
	}
	if reserved[n] {
		return target{}, &refusal{Code: http.StatusBadRequest, Message: "this port of the sandbox is reserved", Port: n}
	}
	name, client, legacy := strings.Cut(id, "-")
	parsed, err := daemon.ParseID(name)
	if err != nil || legacy && !alphanumeric(client) {
		return target{}, notFound("")
	}
	return target{id: parsed, port: n}, nil
}

// parsePort reads a port in decimal without sign, zeros or anything else around it.
func parsePort(s string) (uint16, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != s {
		return 0, false
	}
	return uint16(n), true
}

// splitHost splits "<port>-<id>[-<client>].<domain>[:<port>]". It is ok if that is
// what the host seems to be, whether the parts are any good or not: the name begins with
// something like a port, or contains the ID of a sandbox.
func splitHost(host string) (id, port string, ok bool) {
	label, _, dotted := strings.Cut(strings.ToLower(host), ".")
	port, id, hyphen := strings.Cut(label, "-")
	if !dotted || !hyphen {
		return "", "", false
	}
	name, _, _ := strings.Cut(id, "-")
	_, err := daemon.ParseID(name)
	return id, port, err == nil || digits(port)
}

func digits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

func alphanumeric(s string) bool {
	return s != "" && len(s) <= 64 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}
