package bouvet_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/wire/wiretest"
)

// An agent that refuses in the middle of an upload, its disk being full, and reads
// no more: its answer is what counts, and the rest is not waited for.
func TestUploadRefusedHalfway(t *testing.T) {
	const refusal = `{"error":"no space left on device"}`
	for _, end := range []string{"stall", "close"} {
		peer := wiretest.NewPeer(t, upgraded+fmt.Sprintf("bytes 06 %08x %x\n%s", len(refusal), refusal, end))
		c := connect(t, peer, nil)
		begin := time.Now()
		_, err := c.Upload(t.Context(), "/x", endlessZeros{}, nil)
		if end == "stall" && (!errors.Is(err, bouvet.ErrRPC) || !strings.Contains(err.Error(), "no space left")) {
			t.Errorf("%s: got %v, want what the agent said", end, err)
		}
		if err == nil {
			t.Errorf("%s: an endless upload succeeded", end)
		}
		if took := time.Since(begin); took > bouvet.DefaultRPCTimeout/2 {
			t.Errorf("%s: it took %v to hear the answer", end, took)
		}
	}
}

type endlessZeros struct{}

func (endlessZeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
