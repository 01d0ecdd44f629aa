package firecracker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/bouvet-run/bouvet/wire"
)

const (
	// maxBody is the longest body that Firecracker accepts, in bytes
	// (HTTP_MAX_PAYLOAD_SIZE).
	maxBody = 51200
	// maxReply bounds what is read of an answer, headers and body each, in bytes.
	// Firecracker may be in the guest's hands.
	maxReply = 64 << 10
	// maxFault bounds what an error tells of Firecracker's own words, in bytes.
	maxFault = 1000
	// callTimeout bounds a call that does not touch the guest's memory.
	callTimeout = 10 * time.Second
	// startTimeout bounds the start of a guest, whose files are read then.
	startTimeout = 30 * time.Second
)

// An APIError is Firecracker's refusal of a request.
type APIError struct {
	// Status is the answer's HTTP status.
	Status int
	// Fault is Firecracker's explanation (fault_message).
	Fault string
}

// Error implements error.
func (e *APIError) Error() string {
	return fmt.Sprintf("Firecracker refuses (status %d): %q", e.Status, e.Fault)
}

// An api is a client of one Firecracker.
type api struct{ http *http.Client }

// newAPI returns a client whose connections dial makes.
func newAPI(dial func(ctx context.Context) (net.Conn, error)) *api {
	return &api{&http.Client{
		Transport: &http.Transport{
			DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: maxReply,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (a *api) get(ctx context.Context, path string, reply any) error {
	return a.call(ctx, callTimeout, http.MethodGet, path, nil, reply)
}

func (a *api) put(ctx context.Context, path string, body any) error {
	return a.call(ctx, callTimeout, http.MethodPut, path, body, nil)
}

func (a *api) patch(ctx context.Context, path string, body any) error {
	return a.call(ctx, callTimeout, http.MethodPatch, path, body, nil)
}

// call does one request within limit and ctx. The body goes as JSON, a successful
// answer into reply unless that is nil.
func (a *api) call(ctx context.Context, limit time.Duration, method, path string, body, reply any) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := a.do(ctx, method, path, body, reply)
	if err != nil {
		return fmt.Errorf("cannot %s %s: %w", method, path, err)
	}
	return nil
}

func (a *api) do(ctx context.Context, method, path string, body, reply any) error {
	var content io.Reader = http.NoBody
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		if len(data) > maxBody {
			return fmt.Errorf("request of %d bytes is longer than %d", len(data), maxBody)
		}
		content = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, content)
	if err != nil {
		return err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json")
	resp, err := a.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxReply+1)) //nolint:forbidigo // limited.
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNoContent {
		return refusal(resp.StatusCode, data)
	}
	if len(data) > maxReply {
		return fmt.Errorf("answer is longer than %d bytes", maxReply)
	}
	if reply == nil {
		return nil
	}
	if err := wire.Decode(data, reply); err != nil {
		return fmt.Errorf("cannot read answer: %w", err)
	}
	return nil
}

func refusal(status int, data []byte) error {
	var f fault
	if err := wire.Decode(data, &f); err != nil || f.Message == "" {
		f.Message = string(data)
	}
	if len(f.Message) > maxFault {
		f.Message = f.Message[:maxFault]
	}
	return &APIError{Status: status, Fault: f.Message}
}

// version asks for Firecracker's version. It is the first thing that is asked, and
// waits until there is somebody to answer.
func (a *api) version(ctx context.Context) (Version, error) {
	var r versionReply
	if err := a.get(ctx, pathVersion, &r); err != nil {
		return Version{}, err
	}
	return ParseVersion(r.Version)
}

// refused reports whether err is Firecracker's answer, and not the lack of one.
func refused(err error) bool {
	_, ok := errors.AsType[*APIError](err)
	return ok
}
