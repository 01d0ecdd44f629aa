package wire

import (
	"fmt"
	"strconv"
	"strings"
)

// ConnectLine is what a host writes to reach a port through a hybrid vsock
// socket or a mux stream, the newline included (seed 000, "CONNECT handshake").
func ConnectLine(port uint32) string { return fmt.Sprintf("CONNECT %d\n", port) }

// OKLine is the answer to ConnectLine by our agent: the port itself, as seed 002
// says. Firecracker answers with the host port it assigned (checklist L1).
func OKLine(port uint32) string { return fmt.Sprintf("OK %d\n", port) }

// ParseConnect reads a CONNECT line without its newline. It reports false for
// any other line.
func ParseConnect(line []byte) (port uint32, ok bool) {
	return parseNumbered(line, "CONNECT ")
}

// ParseOK reads an acknowledgement: "OK " and any decimal 32-bit number.
func ParseOK(line []byte) (number uint32, ok bool) { return parseNumbered(line, "OK ") }

func parseNumbered(line []byte, prefix string) (uint32, bool) {
	rest, ok := strings.CutPrefix(strings.TrimSpace(string(line)), prefix)
	if !ok || rest == "" || rest[0] < '0' || rest[0] > '9' {
		return 0, false
	}
	n, err := strconv.ParseUint(rest, 10, 32)
	if err != nil {
		return 0, false
	}
	return uint32(n), true
}
