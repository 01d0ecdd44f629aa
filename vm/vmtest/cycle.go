package vmtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/vm"
)

// Cycle makes a machine, waits for its agent's answer, and destroys it. It returns how
// long the answer took.
func Cycle(d vm.Driver, c vm.Config) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	begin := time.Now()
	m, err := d.Create(ctx, c)
	if err != nil {
		return 0, fmt.Errorf("create: %w", err)
	}
	client, err := bouvet.Connect(ctx, m, &bouvet.ClientOptions{ConnectTimeout: bound, RPCTimeout: bound})
	took = time.Since(begin)
	if err != nil {
		err = fmt.Errorf("connect: %w; console: %.2000q", err, m.Console())
	} else {
		err = client.Close()
	}
	last, cancelLast := context.WithTimeout(context.Background(), bound)
	defer cancelLast()
	return took, errors.Join(err, m.Destroy(last, 0))
}
