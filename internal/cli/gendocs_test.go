package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func TestCLIReferenceIsCurrent(t *testing.T) {
	dir := t.TempDir()
	w := newTestWorld(t, newFakeBackend(t))
	if got := w.run(t, "gen-docs", dir); got != 0 {
		t.Fatalf("gen-docs: exit code %d: %s", got, w.err.String())
	}
	want, err := os.ReadFile(filepath.Join(dir, "CLI.md"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../docs/CLI.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Error("docs/CLI.md is not what the commands say: run `go run ./cmd/bouvet gen-docs docs`")
	}
	pages, err := filepath.Glob(filepath.Join(dir, "man1", "*.1"))
	if err != nil || len(pages) < 10 {
		t.Errorf("%d manual pages, %v, want one a command", len(pages), err)
	}
}

// The rules for help texts: one line that begins with a small letter and has no
// period, and flags that say what they do.
func TestHelpTexts(t *testing.T) {
	eachCommand(newRoot(systemWorld()), func(cmd *cobra.Command) {
		if cmd.Name() == "completion" {
			return // its text is cobra's
		}
		if s := cmd.Short; s == "" || s[:1] != strings.ToLower(s[:1]) || strings.HasSuffix(s, ".") {
			t.Errorf("%s: short help is %q, want a small letter first and no period", cmd.CommandPath(), s)
		}
		for line := range strings.Lines(cmd.Long + "\n" + cmd.Example) {
			if len(line) > 110 {
				t.Errorf("%s: a line of the help has %d characters: %q", cmd.CommandPath(), len(line), line)
			}
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" || strings.HasSuffix(f.Usage, ".") {
				t.Errorf("%s --%s: usage is %q, want a text without a period", cmd.CommandPath(), f.Name, f.Usage)
			}
		})
	})
}
