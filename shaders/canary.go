package shaders

// canaryWords is what the canary writes for each triple.
const canaryWords = 8
