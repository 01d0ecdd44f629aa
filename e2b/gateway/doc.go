// Package gateway is the way into sandboxes: it finds the sandbox and the port that a
// request is for, by its headers, its host name or its signature, and gives it to who
// serves that port: package envd for 49983, and servers inside the sandbox for all others.
// A request that is for no sandbox is the control plane's.
//
// A sandbox's end cuts its responses and nobody else's. What a server inside answers is
// passed on as it comes: with bounds on its header, and without any on how long a body is
// or lasts, since a slow client slows the server, and no more than a buffer lies between.
package gateway
