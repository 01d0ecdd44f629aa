package cli

import (
	"context"
	"fmt"

	"github.com/bouvet-run/bouvet/local"
	"github.com/bouvet-run/bouvet/vm"
)

// A driverTrial is what came of booting a sandbox with a driver.
type driverTrial struct {
	Driver string `json:"driver"`
	// Accel is what runs the guests' instructions where there is a choice.
	Accel string `json:"accel,omitempty"`
	Works bool   `json:"works"`
	// Taken marks the one that "auto" stands for.
	Taken bool `json:"taken"`
	// Reason is why it does not work.
	Reason string `json:"reason,omitempty"`
	Remedy string `json:"remedy,omitempty"`
	// MS is how long the trial took, in milliseconds.
	MS int64 `json:"ms"`
}

// checkDriver readies the driver that was asked for, or the best one that works.
func (c *doctorCommand) checkDriver(ctx context.Context) check {
	if c.driverName == local.Auto {
		if err := c.tryDrivers(ctx); err != nil {
			return c.fail(err, "")
		}
	}
	driver, err := c.backend.Driver(ctx, c.driverName, c.log())
	if err != nil {
		return c.fail(err, "")
	}
	c.driver = driver
	features := driver.Features()
	c.found.Driver, c.found.Features = driver.Name(), &features
	return ok("%s, isolation by %s", driver.Name(), features.Isolation)
}

// tryDrivers tells about each driver whether it works. That a better one than the one
// that is taken does not is nothing to worry about, but good to know.
func (c *doctorCommand) tryDrivers(ctx context.Context) error {
	trials, err := c.backend.Try(ctx, c.log())
	if err != nil {
		return fmt.Errorf("cannot try the drivers: %w", err)
	}
	taken := false
	for i := range trials {
		t := &trials[i]
		found := driverTrial{Driver: t.Driver, Accel: t.Accel, Works: t.Err == nil, Taken: t.Taken, MS: t.Took.Milliseconds()}
		taken = taken || t.Taken
		if t.Err != nil {
			found.Reason, found.Remedy = t.Err.Error(), trialRemedy(t)
		}
		c.found.Drivers = append(c.found.Drivers, found)
		c.show(found.line(t.Name()))
	}
	if taken {
		return nil
	}
	return fmt.Errorf("no driver works here: %w", vm.ErrUnsupported)
}

func trialRemedy(t *local.Trial) string {
	if t.Remedy != "" {
		return t.Remedy
	}
	if e := describe(t.Err); e.Remedy != remedyDoctor {
		return e.Remedy
	}
	return ""
}

// line is the trial as one for people.
func (t *driverTrial) line(name string) *check {
	k := check{Status: statusNone, Detail: t.Reason, Remedy: t.Remedy}
	switch {
	case t.Taken:
		k = ok("works, a sandbox took %d ms: the best one here", t.MS)
	case t.Works:
		k = ok("works, a sandbox took %d ms (to take it: --driver %s)", t.MS, t.Driver)
	}
	k.Name = name
	return &k
}
