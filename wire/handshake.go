package wire

import (
	"bytes"
	"fmt"
	"strconv"
)

// ConnectLine is what a host writes to reach a port through a hybrid vsock
// socket or a mux stream, the newline included (seed 000, "CONNECT handshake").
func ConnectLine(port uint32) string { return fmt.Sprintf("CONNECT %d\n", port) }

// OKLine is the answer to ConnectLine by our agent: the port itself, as seed 002
// says. Firecracker answers with the host port it assigned (checklist L1).
func OKLine(port uint32) string { return fmt.Sprintf("OK %d\n", port) }

// white is what may stand around a handshake line.
const white = " \t\r\n"

// ParseConnect reads a CONNECT line, with or without its newline. It reports
// false for any other line. White space around the line is allowed, as in seed
// 002.
func ParseConnect(line []byte) (port uint32, ok bool) {
	return parseNumbered(bytes.Trim(line, white), "CONNECT ")
}

// ParseOK reads an acknowledgement, with or without its newline: "OK " and any
// decimal 32-bit number. White space may follow.
func ParseOK(line []byte) (number uint32, ok bool) {
	return parseNumbered(bytes.TrimRight(line, white), "OK ")
}

func parseNumbered(line []byte, prefix string) (uint32, bool) {
	rest, ok := bytes.CutPrefix(line, []byte(prefix))
	if !ok || len(rest) == 0 || !isDigit(rest[0]) {
		return 0, false
	}
	n, err := strconv.ParseUint(string(rest), 10, 32)
	if err != nil {
		return 0, false
	}
	return uint32(n), true
}
