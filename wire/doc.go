// Package wire holds what crosses the line between the host and the agent in a
// guest: the messages of both protocols, their framing and their limits.
//
// Port 52 carries JSON-RPC 2.0, one object a line (seed 003). Port 10700 carries
// the streaming exec protocol, one command a connection (seed 001). Both sides
// use this package, and it is the only reader of a peer's bytes: every read has
// a bound, keys match exactly (encoding/json alone matches them in any case,
// which let one message mean different things to two readers, CVE-2026-27896),
// a key given twice is an error, and integers keep all their 64 bits.
//
// docs/PROTOCOL.md is the normative text. The package imports only the standard
// library.
package wire

// Ports the agent listens on.
const (
	// PortRPC is the JSON-RPC port (seed 000, GUEST_PORT).
	PortRPC uint32 = 52
	// PortExec is the default port of the exec protocol (seed 001).
	PortExec uint32 = 10700
)

// Limits. They hold for our own messages and for what is accepted of a peer.
const (
	// MaxContent is the largest file content that read_file and write_file carry,
	// in bytes (seed 003).
	MaxContent = 10 << 20
	// MaxRPCLine bounds one JSON-RPC line in bytes. MaxContent bytes of control
	// characters take six bytes each ("\u0001"), and the envelope needs room.
	MaxRPCLine = 6*MaxContent + 1<<20
	// MaxExecLine bounds one line of the exec protocol in bytes: a command as
	// long as Linux's argument limit (2 MiB) in its worst escaping.
	MaxExecLine = 13 << 20
	// MaxHandshakeLine bounds a CONNECT or OK line in bytes.
	MaxHandshakeLine = 64
	// MaxPayload bounds the payload of one binary frame in bytes.
	MaxPayload = 1 << 20
	// MaxOutput is how much of each output stream an ExecResult keeps, in bytes;
	// the rest is dropped and TruncatedSuffix appended (seed 003).
	MaxOutput = 1 << 20
	// MaxDepth bounds the nesting of a JSON message.
	MaxDepth = 32
	// MaxKeys bounds the keys of one object in a message.
	MaxKeys = 256
	// MaxElements bounds the elements of one array in a message. It is more than
	// the arguments Linux lets a command have, and keeps a line of MaxRPCLine
	// bytes from becoming ten times as much memory.
	MaxElements = 1 << 18
	// MaxID bounds the name of a detached process in bytes.
	MaxID = 64
	// ChunkSize is how many bytes of a stream our side puts into one frame.
	ChunkSize = 64 << 10
)

// TruncatedSuffix ends an output stream that was cut at MaxOutput (seed 003).
const TruncatedSuffix = "\n... [output truncated]"
