// Package house has no code: its tests hold the repository to the rules of the
// house that no linter knows. An import points down only, a package says what it
// is, a file is of one idea, and a skipped test says how to run it.
package house
