package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/bouvet-run/bouvet/internal/guest"
	"github.com/bouvet-run/bouvet/vm/gvisor"
)

// versions says what this program is made of.
type versions struct {
	Bouvet string `json:"bouvet"`
	GVisor string `json:"gvisor"`
	// Agent is the guest's program: where it comes from and its digest.
	Agent string `json:"agent"`
	Go    string `json:"go"`
	OS    string `json:"os"`
	Arch  string `json:"arch"`
}

func currentVersions() versions {
	v := versions{
		Bouvet: version, GVisor: gvisor.Version(),
		Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
	}
	if info, ok := debug.ReadBuildInfo(); ok && v.Bouvet == "devel" && info.Main.Version != "" && info.Main.Version != "(devel)" {
		v.Bouvet = info.Main.Version // go install module@version
	}
	agent, err := guest.Resolve()
	if err != nil {
		v.Agent = "none: " + err.Error()
	} else {
		v.Agent = fmt.Sprintf("%s %s", agent.Source, shortDigest(agent.Digest))
	}
	return v
}

func newVersionCommand(w *world) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "show the versions of Bouvet and its parts",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := currentVersions()
			if asJSON {
				return writeJSON(w.stdout, v)
			}
			t := tabwriter.NewWriter(w.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintf(t, "bouvet\t%s\ngvisor\t%s\nagent\t%s\ngo\t%s %s/%s\n", cell(v.Bouvet), cell(v.GVisor), cell(v.Agent), v.Go, v.OS, v.Arch)
			return t.Flush()
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
