package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

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
			return w.table([][]string{{"bouvet", v.Bouvet}, {"gvisor", v.GVisor}, {"agent", v.Agent}, {"go", v.Go + " " + v.OS + "/" + v.Arch}})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
