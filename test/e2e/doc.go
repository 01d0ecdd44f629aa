// Package e2e tests Bouvet as a whole against hostile guests and failing hosts:
// real sandboxes on the default image, through package local. The tests carry the
// numbers of the threats that they cover.
package e2e
