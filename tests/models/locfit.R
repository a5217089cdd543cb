# Local likelihood fits of R's locfit, as a table: Rscript locfit.R attnkernel/data/csv > locfit.csv
suppressMessages(library(locfit))
options(digits = 15)
folder <- commandArgs(trailingOnly = TRUE)[1]
read <- function(name) read.csv(file.path(folder, paste0(name, ".csv")))

wage <- read("wage1")
trials <- as.vector(tapply(wage$married, wage$exper, length))
married <- as.vector(tapply(wage$married == "Married", wage$exper, sum))
exper <- as.numeric(names(tapply(wage$married, wage$exper, length)))
faithful <- read("faithful")
cases <- list(
  binomial = list(x = exper, y = married, w = trials, h = 20, kern = "gauss"),
  poisson = list(x = wage$exper, y = wage$educ, w = 1, h = 15, kern = "tcub"),
  gamma = list(x = faithful$eruptions, y = faithful$waiting, w = 1, h = 2, kern = "gauss")
)
cat("family,order,row,fit,se,left_out\n")
for (family in names(cases)) {
  for (order in 0:2) {
    case <- cases[[family]]
    n <- length(case$x)
    weights <- rep(1, n) * case$w
    fit_to <- function(rows, points) locfit.raw(
      lp(case$x[rows], h = case$h, deg = order), case$y[rows], weights = weights[rows],
      family = family, kern = case$kern, ev = points, maxit = 200
    )
    fit <- fit_to(1:n, dat())
    means <- fitted(fit)
    errors <- predict(fit, where = "fitp", what = "nlx")  # standard errors on the link's scale
    for (row in round(seq(1, n, length.out = 7))) {
      left_out <- predict(fit_to(-row, case$x[row]), where = "fitp")
      cat(family, order, row - 1, means[row], errors[row], left_out, sep = ",")
      cat("\n")
    }
  }
}
