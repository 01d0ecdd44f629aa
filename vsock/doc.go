// Package vsock gives a net.Conn to a port of the agent in a guest, whatever
// lies between.
//
// On the host, Hybrid dials a port through the unix socket that Firecracker and
// vhost-device-vsock serve ("CONNECT <port>", "OK <number>"), and Mux through one
// byte stream that carries many, a donated socketpair or a virtio-serial port.
// In the guest, Listen opens an AF_VSOCK port and MuxListener is the other end of
// a Mux. The handshake of a port is the same on all of them, so one client and
// one agent serve every driver.
package vsock
