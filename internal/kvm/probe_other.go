//go:build !linux || !amd64

package kvm

import "runtime"

func probe() *Error {
	return &Error{Reason: "Bouvet has no virtual machines for " + runtime.GOOS + "/" + runtime.GOARCH}
}
