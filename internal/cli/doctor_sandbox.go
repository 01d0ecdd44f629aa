package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/image"
)

// languageTime bounds the trial of one language.
const languageTime = 20 * time.Second

func (c *doctorCommand) checkLimits(context.Context) check {
	f := c.driver.Features()
	const remedy = "run bouvet as root, or in a delegated cgroup: systemd-run --user --scope -p Delegate=yes bouvet ..."
	switch {
	case f.MemoryLimit && f.CPULimit:
		return ok("memory and CPU are limited by a cgroup")
	case f.MemoryLimit:
		return warn(remedy, "memory is limited; CPU is not: there is no cpu cgroup that this user may write to")
	case f.CPULimit:
		return warn(remedy, "CPU is limited; memory is not: there is no memory cgroup that this user may write to")
	default:
		return warn(remedy, "neither memory nor CPU is limited: there is no cgroup that this user may write to")
	}
}

func (c *doctorCommand) checkLeftovers(ctx context.Context) check {
	left, err := c.backend.Sweep(ctx, c.fix, c.log())
	if len(left) > 0 {
		c.found.Leftovers = left
	}
	var stale []string
	if c.fix && err == nil {
		stale, err = c.store.Clean(ctx)
	}
	if err != nil {
		return failed(fmt.Errorf("cannot look for leftovers: %w", err), "")
	}
	var kept []string
	for _, l := range left {
		if !l.Removed {
			kept = append(kept, strings.TrimSpace(fmt.Sprintf("%s %s %s", l.Kind, l.What, l.Error)))
		}
	}
	switch {
	case len(left)+len(stale) == 0:
		return ok("none")
	case len(kept) == 0:
		return ok("%d removed", len(left)+len(stale))
	case !c.fix:
		return warn("bouvet doctor --fix", "%d of killed runs: %s", len(kept), strings.Join(kept, ", "))
	default:
		return failed(fmt.Errorf("%d could not be removed: %s", len(kept), strings.Join(kept, ", ")), "as root: bouvet doctor --fix")
	}
}

func (c *doctorCommand) checkImage(ctx context.Context) check {
	h, err := c.store.Acquire(ctx, c.image)
	if err != nil {
		remedy := ""
		if c.image == image.DefaultName {
			if remedy = remedyBuildImages; !errors.Is(err, image.ErrNotFound) {
				remedy += " --force"
			}
		}
		return c.fail(fmt.Errorf("cannot use image %s: %w", quoted(c.image), err), remedy)
	}
	defer func() { _ = h.Release() }()
	info := h.Info()
	return ok("%s %s, %s, %s", info.Name, shortDigest(info.Digest), humanSize(info.Size), clip(info.Source, 80))
}

func (c *doctorCommand) checkSandbox(ctx context.Context) check {
	manager, err := newManager(ctx, c.driver, c.store, nil, nil, c.log())
	if err != nil {
		return c.fail(err, "")
	}
	began := time.Now()
	c.sandbox, err = manager.CreateSandbox(ctx, bouvet.Config{Image: c.image})
	if err != nil {
		return c.fail(fmt.Errorf("cannot start a sandbox: %w", err), "bouvet doctor --debug; the last lines say where it stopped")
	}
	created := time.Since(began)
	began = time.Now()
	if err := c.sandbox.Client().Ping(ctx); err != nil {
		return c.fail(fmt.Errorf("cannot reach the agent: %w", err), "")
	}
	return ok("started in %d ms, a ping takes %s", created.Milliseconds(), time.Since(began).Round(10*time.Microsecond))
}

// checkGuest looks whether the guest sees the limits it was given.
func (c *doctorCommand) checkGuest(ctx context.Context) check {
	result, err := c.sandbox.Execute(ctx, "uname -sr; nproc; sed -n 's/^MemTotal: *//p' /proc/meminfo")
	if err != nil {
		return failed(fmt.Errorf("cannot look into the sandbox: %w", err), "")
	}
	lines := strings.Split(strings.TrimSpace(result.Stdout), "\n")
	if result.ExitCode != 0 || len(lines) != 3 {
		return warn("", "the image lacks uname, nproc or sed: %s", strings.TrimSpace(result.Stderr))
	}
	return ok("%s, %s CPUs, %s of memory", lines[0], lines[1], lines[2])
}

func (c *doctorCommand) checkLanguage(name, code string) func(context.Context) check {
	return func(ctx context.Context) check {
		ctx, cancel := context.WithTimeout(ctx, languageTime)
		defer cancel()
		result, err := c.sandbox.ExecuteCode(ctx, name, code)
		switch {
		case err != nil:
			return failed(fmt.Errorf("cannot run %s: %w", name, err), "")
		case result.ExitCode != 0 && c.image != image.DefaultName:
			return warn("", "not in image %s: %s", c.image, strings.TrimSpace(result.Stderr))
		case result.ExitCode != 0:
			return failed(fmt.Errorf("exit code %d: %s", result.ExitCode, strings.TrimSpace(result.Stderr)), remedyBuildImages+" --force")
		}
		return ok("%s", strings.TrimSpace(result.Stdout))
	}
}

func (c *doctorCommand) checkRemoval(ctx context.Context) check {
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), destroyTime)
	defer cancel()
	if err := c.sandbox.Destroy(ctx); err != nil {
		return failed(fmt.Errorf("cannot remove the sandbox: %w", err), "bouvet doctor --fix")
	}
	c.sandbox = nil
	return ok("the sandbox is gone after %d ms", time.Since(began).Milliseconds())
}
