package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/bouvet-run/bouvet/internal/server"
	"github.com/bouvet-run/bouvet/internal/store"
)

// A settingValue is a flag of a server.Setting.
type settingValue struct {
	setting server.Setting
	value   *string
	scratch server.Config
}

func (v *settingValue) String() string {
	if v.setting.Get == nil {
		return ""
	}
	return v.setting.Get(&v.scratch)
}

// Set reads a value to see whether it is one; it is set when the file has been read.
func (v *settingValue) Set(text string) error {
	v.value = &text
	return v.setting.Set(&v.scratch, text)
}

func (v *settingValue) Type() string { return "string" }

var _ pflag.Value = (*settingValue)(nil)

func newServeCommand(w *world) *cobra.Command {
	var file string
	var flags []*settingValue
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "keep sandboxes for programs: the API of E2B's SDKs",
		Long: `Runs the daemon: it keeps sandboxes for programs that use E2B's SDKs, and survives
being killed. Nothing needs to be configured: the first start shows an API key, and

  E2B_API_URL=http://127.0.0.1:3900 E2B_SANDBOX_URL=http://127.0.0.1:3900 E2B_API_KEY=...

makes an SDK use it. The user that runs it needs no key on the unix socket bouvet.sock
in the state directory. With --domain, sandboxes have names of their own under TLS.

Every setting can be given as a flag, else in the environment ($BOUVET_ and its name in
capitals with underscores), else in the YAML file of --config, by the flag's name. At
the first SIGTERM or SIGINT nothing more is created, requests may end in the time of
--drain, and with running sandboxes is done what --at-exit says; the second ends
the daemon at once, and the next start finds what it left.`,
		Example: `  bouvet serve
  bouvet serve --listen 127.0.0.1:3901 --max-sandboxes 20
  bouvet serve --domain sbx.test:8443`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := w.serverConfig(file, flags)
			if err != nil {
				return err
			}
			ctx, stop := w.interruptible(cmd.Context())
			defer stop()
			return serveProblem(server.Serve(ctx, server.Options{Config: c, Stderr: w.stderr, Exe: w.serveExe}))
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "read settings from this YAML `FILE`")
	for _, s := range server.Settings() {
		v := &settingValue{setting: s, scratch: server.DefaultConfig()}
		flags = append(flags, v)
		cmd.Flags().Var(v, s.Name, s.Usage)
	}
	return cmd
}

// serverConfig puts together what the file, the environment and the flags say, in that
// rising order.
func (w *world) serverConfig(file string, flags []*settingValue) (server.Config, error) {
	c, err := server.Load(file, w.lookupEnv)
	if err != nil {
		return server.Config{}, serveProblem(err)
	}
	for _, f := range flags {
		if f.value == nil {
			continue
		}
		if err := f.setting.Set(&c, *f.value); err != nil {
			return server.Config{}, usage("bouvet serve --help", "cannot use --%s: %w", f.setting.Name, err)
		}
	}
	if w.debug {
		c.LogLevel = -4
	}
	return c, nil
}

// serveProblem says what a user can do about an error of the daemon.
func serveProblem(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, server.ErrConfig):
		return &problem{kind: kindUsage, err: err, remedy: "bouvet serve --help"}
	case errors.Is(err, server.ErrRunning):
		return &problem{kind: kindDaemonRuns, err: err, remedy: "the one that runs"}
	case errors.Is(err, store.ErrForeign), errors.Is(err, store.ErrCorrupt), errors.Is(err, store.ErrVersion), errors.Is(err, store.ErrUnwritable):
		return &problem{kind: kindDatabase, err: err}
	default:
		return fmt.Errorf("the daemon ended: %w", err)
	}
}
