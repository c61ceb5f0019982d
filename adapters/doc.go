// Package adapters knows EDA programs: it turns typed arguments into commands that cannot be subverted, and finished processes into judgements
// that can be trusted.
package adapters
