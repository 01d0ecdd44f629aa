package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/image"
	"github.com/bouvet-run/bouvet/vm"
)

// Statuses of a check.
const (
	statusOK   = "ok"
	statusWarn = "warn"
	statusFail = "fail"
	// statusNone is that of a driver that does not work while another one may.
	statusNone = "no"
)

// A check is one line of the doctor's report.
type check struct {
	Name   string `json:"name"`
	Status string `json:"status"`
	// Detail is what was found, and the cause where that is bad.
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
	// MS is how long it took, in milliseconds.
	MS int64 `json:"ms"`
}

// A diagnosis is the doctor's report under --json.
type diagnosis struct {
	OK       bool     `json:"ok"`
	Versions versions `json:"versions"`
	// Drivers are those that were tried, the best first.
	Drivers   []driverTrial `json:"drivers,omitempty"`
	Driver    string        `json:"driver,omitempty"`
	Features  *vm.Features  `json:"features,omitempty"`
	StateDir  string        `json:"state_dir,omitempty"`
	Leftovers []vm.Leftover `json:"leftovers"`
	Checks    []check       `json:"checks"`
}

// doctorCommand is bouvet doctor with its flags, and what it learns on its way.
type doctorCommand struct {
	*world
	fix, json  bool
	image      string
	driverName string

	found   diagnosis
	driver  vm.Driver
	store   *image.Store
	sandbox *bouvet.Sandbox
	// halted means that what follows cannot be tried.
	halted bool
}

func newDoctorCommand(w *world) *cobra.Command {
	c := &doctorCommand{world: w}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "find out what works on this machine, and the remedy for what does not",
		Long: `Boots a sandbox with each driver and says which one is taken, and of the others why
they are not; with --driver, it looks at that one alone. Then it starts a real
sandbox, runs each language in it and removes it again; looks at the state directory,
the limits that can be enforced, and what killed runs have left behind. Ends with exit
code 1 if something fails; a warning is no failure.

Which driver works is remembered until the host boots or something that the answer
depends on is another; bouvet doctor finds it out anew.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.BoolVar(&c.fix, "fix", false, "remove what killed runs have left behind")
	f.BoolVar(&c.json, "json", false, "print one JSON object")
	f.StringVar(&c.image, "image", bouvet.DefaultImage, "the `IMAGE` to try")
	completeFlag(cmd, "image", w.completeImages)
	addDriverFlag(cmd, w, &c.driverName)
	return cmd
}

func (c *doctorCommand) run(ctx context.Context) error {
	if err := checkDriverName(c.driverName); err != nil {
		return err
	}
	ctx, done := c.interruptible(ctx)
	defer done()
	c.found = diagnosis{OK: true, Versions: currentVersions(), Leftovers: []vm.Leftover{}}
	for _, step := range []struct {
		name string
		do   func(context.Context) check
	}{
		{"host", c.checkHost},
		{"state", c.checkState},
		{"disk", c.checkDisk},
		{"agent", c.checkAgent},
		{"driver", c.checkDriver},
		{"limits", c.checkLimits},
		{"leftovers", c.checkLeftovers},
		{"image", c.checkImage},
		{"sandbox", c.checkSandbox},
		{"guest", c.checkGuest},
		{"python", c.checkLanguage("python", "import platform; print(platform.python_version())")},
		{"node", c.checkLanguage("node", "console.log(process.version)")},
		{"bash", c.checkLanguage("bash", "echo $BASH_VERSION")},
		{"removal", c.checkRemoval},
	} {
		if c.halted {
			break
		}
		if err := interrupted(ctx, ctx.Err()); err != nil {
			c.abandon(ctx)
			return err
		}
		c.add(ctx, step.name, step.do)
	}
	c.abandon(ctx)
	return c.conclude()
}

// abandon removes the sandbox if a check that failed has left it.
func (c *doctorCommand) abandon(ctx context.Context) {
	if c.sandbox == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), destroyTime)
	defer cancel()
	if err := c.sandbox.Destroy(ctx); err != nil {
		c.warn(err)
	}
	c.sandbox = nil
}

func (c *doctorCommand) add(ctx context.Context, name string, do func(context.Context) check) {
	began := time.Now()
	k := do(ctx)
	k.Name, k.MS = name, time.Since(began).Milliseconds()
	c.found.Checks = append(c.found.Checks, k)
	if k.Status == statusFail {
		c.found.OK = false
	}
	c.show(&k)
}

// show prints a line of the report for people.
func (c *doctorCommand) show(k *check) {
	if c.json {
		return
	}
	c.printf("%-4s  %-11s  %s\n", k.Status, k.Name, printable(k.Detail, 1000))
	if k.Remedy != "" {
		c.printf("%19stry: %s\n", "", printable(k.Remedy, 1000))
	}
}

func (c *doctorCommand) conclude() error {
	if c.json {
		if err := writeJSON(c.stdout, c.found); err != nil {
			return err
		}
	} else {
		var failed, warned []string
		for _, k := range c.found.Checks {
			switch k.Status {
			case statusFail:
				failed = append(failed, k.Name)
			case statusWarn:
				warned = append(warned, k.Name)
			}
		}
		switch {
		case len(failed) > 0:
			c.printf("\nnot ready: %s\n", strings.Join(failed, ", "))
		case len(warned) > 0:
			c.printf("\nready, with warnings: %s\n", strings.Join(warned, ", "))
		default:
			c.printf("\nready: sandboxes work here\n")
		}
	}
	if c.found.OK {
		return nil
	}
	return exitWith(1)
}

func ok(format string, args ...any) check {
	return check{Status: statusOK, Detail: fmt.Sprintf(format, args...)}
}

func warn(remedy, format string, args ...any) check {
	return check{Status: statusWarn, Detail: fmt.Sprintf(format, args...), Remedy: remedy}
}

// fail is a check whose failure leaves nothing to be tried after it.
func (c *doctorCommand) fail(err error, remedy string) check {
	c.halted = true
	return failed(err, remedy)
}

// failed takes the remedy of the error if there is no other.
func failed(err error, remedy string) check {
	e := describe(err)
	if remedy == "" && e.Remedy != remedyDoctor {
		remedy = e.Remedy
	}
	return check{Status: statusFail, Detail: e.Message, Remedy: remedy}
}
