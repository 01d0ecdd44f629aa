// Package e2b is the HTTP API that E2B's stock SDKs speak, on the sandboxes of package
// internal/daemon: the control plane (REST) in this package, the data plane in those
// below it: envd (port 49983 of every sandbox: processes and files), and gateway, which
// finds the sandbox and the port that a request is for and forwards to servers inside.
// What it promises and where it differs is in docs/E2B.md.
package e2b
