// Package bench holds the benchmarks that compare Bouvet with a real peer or a
// floor measured in the same run, in turns. Each prints both medians and their
// ratio; docs/BENCHMARKS.md says what they are to be. Run them with `make bench`.
package bench
