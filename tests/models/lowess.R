# Robust fits of R's lowess and loess, as a table: Rscript lowess.R attnkernel/data/csv > lowess.csv
options(digits = 15)
folder <- commandArgs(trailingOnly = TRUE)[1]
mcycle <- read.csv(file.path(folder, "mcycle.csv"))
mcycle <- mcycle[order(mcycle$times), ]
x <- mcycle$times
y <- mcycle$accel
y[seq(5, length(y), by = 10)] <- y[seq(5, length(y), by = 10)] + 150  # every tenth is an outlier
rows <- round(seq(1, length(x), length.out = 20))
put <- function(name, fit, weights) for (row in rows) {
  cat(name, row - 1, fit[row], weights[row], sep = ",")
  cat("\n")
}
cat("name,row,fit,weight\n")
for (iterations in c(1, 3)) {
  fit <- lowess(x, y, f = 0.3, iter = iterations, delta = 0)
  put(paste0("lowess ", iterations), fit$y, NaN * x)
}
for (degree in 1:2) {
  fit <- loess(y ~ x, span = 0.4, degree = degree, family = "symmetric",
               control = loess.control(surface = "direct", iterations = 4))
  put(paste0("loess ", degree), fit$fitted, fit$robust)
}
