package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

type completion = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

func completeFlag(cmd *cobra.Command, flag string, f completion) {
	if err := cmd.RegisterFlagCompletionFunc(flag, f); err != nil {
		panic(err) // the flag does not exist: a mistake in this package
	}
}

func fixed(values []string) completion {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return values, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeImages offers the names of images. A shell waits for it, so it gives up
// soon and says nothing.
func (w *world) completeImages(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
	defer cancel()
	store, err := w.backend.Images()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	infos, err := store.List(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	given := map[string]bool{}
	for _, a := range args {
		given[a] = true
	}
	var names []string
	for _, info := range infos {
		if !given[info.Name] && strings.HasPrefix(info.Name, prefix) {
			names = append(names, info.Name+"\t"+clip(info.Source, 60))
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
