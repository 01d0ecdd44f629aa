// Package wait waits for what nobody announces.
package wait

import (
	"context"
	"time"
)

const (
	first   = 500 * time.Microsecond
	longest = 50 * time.Millisecond
)

// Until calls f until it says true or fails, at growing intervals from 0.5 to 50
// ms. It fails with ctx's error when that ends first.
func Until(ctx context.Context, f func() (bool, error)) error {
	wait := first
	for {
		done, err := f()
		if done || err != nil {
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
		wait = min(2*wait, longest)
	}
}
