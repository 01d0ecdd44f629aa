package gateway

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/bouvet-run/bouvet/internal/daemon"
)

// A refusal is an answer of the gateway itself, in the form that SDKs know.
type refusal struct {
	SandboxID daemon.ID `json:"sandboxId,omitempty"`
	Message   string    `json:"message"`
	Code      int       `json:"code"`
	Port      uint16    `json:"port,omitempty"`

	retryAfter time.Duration
}

// Error makes a refusal the error of a round trip.
func (f *refusal) Error() string { return f.Message }

func (f *refusal) write(w http.ResponseWriter) {
	body, err := json.Marshal(f)
	if err != nil {
		http.Error(w, f.Message, f.Code)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	if f.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(f.retryAfter.Seconds()))))
	}
	w.WriteHeader(f.Code)
	_, _ = w.Write(body) // nobody can be told of a failure
}

// notFound is the answer for a sandbox that is not there, or not running: SDKs take its
// status to mean that.
func notFound(id daemon.ID) *refusal {
	return &refusal{SandboxID: id, Message: "The sandbox was not found", Code: http.StatusBadGateway}
}

// closedPort is the answer when nothing listens.
func closedPort(t target) *refusal {
	return &refusal{SandboxID: t.id, Message: "The sandbox is running but port is not open", Code: http.StatusBadGateway, Port: t.port}
}

// noUse says why a sandbox could not be taken in hand.
func noUse(id daemon.ID, err error) *refusal {
	f := &refusal{SandboxID: id, Code: http.StatusBadGateway}
	var quota *daemon.QuotaError
	switch {
	case errors.Is(err, daemon.ErrNotFound), errors.Is(err, daemon.ErrConflict):
		return notFound(id)
	case errors.Is(err, daemon.ErrBusy):
		f.Code, f.Message, f.retryAfter = http.StatusConflict, "The sandbox is being paused or resumed: try again", time.Second
	case errors.As(err, &quota):
		f.Code, f.Message, f.retryAfter = http.StatusTooManyRequests, "The sandbox cannot be resumed: "+quota.Error(), quota.RetryAfter
	case errors.Is(err, daemon.ErrDraining):
		f.Code, f.Message, f.retryAfter = http.StatusServiceUnavailable, "The sandbox cannot be resumed: the server is shutting down", time.Second
	default:
		f.Message = "The sandbox could not be resumed"
	}
	return f
}
